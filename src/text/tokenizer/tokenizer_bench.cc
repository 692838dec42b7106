// Time to read a tokenizer.json, and bytes per second of encode() and decode() on one thread.
//   NIBBLE_TOKENIZER=.../tokenizer.json NIBBLE_TEXT=some.txt tokenizer_bench
// Without NIBBLE_TEXT: the texts that are hostile to a tokenizer, 10 MB each.
// tools/bench_tokenizer.py runs it side by side with Hugging Face `tokenizers`.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "text/tokenizer/tokenizer.h"

namespace nibble {
namespace {

constexpr size_t kHostileBytes = 10'000'000;

std::string tokenizer_path() {
  const char* path = std::getenv("NIBBLE_TOKENIZER");
  return path != nullptr ? path : "tokenizer.json";
}

const Tokenizer& tokenizer() {
  static const Tokenizer t = Tokenizer::load(tokenizer_path());
  return t;
}

std::string read_text(const char* path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void BM_load(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::load(tokenizer_path()).size());
}

void encode(benchmark::State& state, const std::string& text) {
  size_t num_ids = 0;
  for (auto _ : state) num_ids = tokenizer().encode(text).size();
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
  state.counters["bytes"] = static_cast<double>(text.size());
  state.counters["ids"] = static_cast<double>(num_ids);
}

void decode(benchmark::State& state, const std::string& text) {
  const auto ids = tokenizer().encode(text);
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer().decode(ids).size());
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
}

std::string repeat(std::string_view unit) {
  std::string text;
  while (text.size() < kHostileBytes) text += unit;
  return text;
}

void add(const std::string& name, const std::string& text) {
  benchmark::RegisterBenchmark(("encode/" + name).c_str(), encode, text)
      ->Unit(benchmark::kMillisecond);
}

void register_all() {
  benchmark::RegisterBenchmark("load", BM_load)->Unit(benchmark::kMillisecond);
  if (const char* path = std::getenv("NIBBLE_TEXT")) {
    const std::string text = read_text(path);
    add("text", text);
    benchmark::RegisterBenchmark("decode/text", decode, text)->Unit(benchmark::kMillisecond);
    return;
  }
  add("a", repeat("a"));
  add("A", repeat("A"));
  add("spaces", repeat(" "));
  add("newlines", repeat("\n"));
  add("newline_then_spaces", "\n" + repeat(" "));
  add("a_b", repeat("a b "));
  add("digits", repeat("7"));
  add("punctuation", repeat("!"));
  add("apostrophes", repeat("'"));
  add("combining_marks", repeat("\xCC\x81"));
  add("marks_out_of_order", repeat("\xCC\x81") + repeat("\xCC\x96"));
  add("han", repeat("\xE6\x97\xA5"));
  add("emoji", repeat("\xF0\x9F\x92\x96"));
  add("left_angle", repeat("<|"));
  add("invalid", repeat("\xFF"));
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  nibble::register_all();
  benchmark::RunSpecifiedBenchmarks();
}
