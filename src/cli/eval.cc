// nibble eval: what a speed setting costs in quality. Runs a text through one configuration of a
// model and through a reference, and compares all their predictions.
#include <CLI/App.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/engine_setup.h"
#include "cli/json.h"
#include "cli/logit_comparison.h"
#include "cli/text_table.h"
#include "io/files.h"
#include "text/tokenizer/tokenizer.h"

namespace nibble::cli {
namespace {

constexpr int64_t kMaxTextBytes = int64_t{1} << 30;

struct EvalFlags {
  EngineFlags engine;
  std::string text;
  std::string against = "dense-format=bf16";
  int32_t window = 512;
  int32_t max_tokens = 4096;
  bool specials = false;
  bool json = false;
};

// "dense-format=bf16,activations=float": the candidate's flags, but for those. dense-format is that
// of all dense matrices, unless mxfp4-layers is said too.
EngineFlags reference_flags(const EvalFlags& flags) {
  EngineFlags reference = flags.engine;
  if (flags.against.find("dense-format") != std::string::npos) reference.dense = {};
  CLI::App parser;
  add_engine_flags(parser, reference);
  std::vector<std::string> arguments;
  for (const std::string& setting : CLI::detail::split(flags.against, ','))
    arguments.insert(arguments.begin(), "--" + CLI::detail::trim_copy(setting));
  for (std::string& argument : arguments) std::replace(argument.begin(), argument.end(), '+', ',');
  try {
    parser.parse(std::move(arguments));
  } catch (const CLI::ParseError& e) {
    throw Error(ErrorKind::kUsage, "--against " + flags.against + ": " + e.what() +
                                       "; expected settings such as dense-format=bf16,exact or "
                                       "mxfp4-layers=qkv+o");
  }
  return reference;
}

// "auto" stays: what it means depends on the device.
std::string describe(const EngineFlags& flags) {
  std::string text = "dense " + dense_text(dense_formats(flags.dense)) + ", activations " +
                     (flags.exact ? "bf16" : flags.activations) + ", KV " + flags.kv_cache_dtype;
  return flags.exact ? text + ", exact" : text;
}

// The text's ids in windows, the last of which may be shorter; none of one id, which predicts
// nothing.
using Windows = std::vector<std::vector<int32_t>>;

Windows cut_windows(const EvalFlags& flags, const ModelFiles& files) {
  if (files.directory.empty())
    throw Error(ErrorKind::kNotFound, flags.engine.model + ": has no tokenizer.json here");
  const Tokenizer tokenizer = Tokenizer::load(files.directory.string());
  const std::string text = read_text_file(flags.text, kMaxTextBytes);
  std::vector<int32_t> ids =
      tokenizer.encode(text, flags.specials ? Specials::kRecognize : Specials::kAsText);
  if (flags.max_tokens > 0) ids.resize(std::min<size_t>(ids.size(), flags.max_tokens));
  Windows windows;
  for (size_t at = 0; at + 1 < ids.size(); at += flags.window)
    windows.emplace_back(ids.begin() + at, ids.begin() + std::min(ids.size(), at + flags.window));
  if (!windows.empty() && windows.back().size() < 2) windows.pop_back();
  if (windows.empty()) throw Error(ErrorKind::kUsage, flags.text + ": has fewer than two tokens");
  return windows;
}

// Called with the logits of each position in turn, window by window.
using OnLogits = std::function<void(std::span<const float> logits)>;

// Loads the model and scores every window as a sequence of its own.
void run(EngineFlags flags, const Windows& windows, const OnLogits& on_logits) {
  flags.max_num_seqs = 1;
  flags.max_model_len = static_cast<int32_t>(windows.front().size());
  const auto tap = [&](std::string_view name, int layer, const Tensor& value) {
    if (layer != -1 || name != "logits") return;
    for (int64_t row = 0; row < value.dim(0); ++row)
      on_logits({value.as<float>() + row * value.dim(1), static_cast<size_t>(value.dim(1))});
  };
  const LoadedEngine loaded = load_engine(flags, {.masked_ids = {}, .quiet = true, .tap = tap});
  for (const std::vector<int32_t>& window : windows) {
    std::string error;
    Request request{.prompt = window, .prompt_logprobs = 0};
    request.on_prompt_logprobs = [](const PromptLogprobs&) {};
    request.on_output = [&](const Output& output) { error = output.error; };
    const Result<RequestId> id = loaded.engine->submit(std::move(request));
    if (!id.ok()) throw Error(ErrorKind::kUsage, id.error());
    while (loaded.engine->step()) {
    }
    if (!error.empty()) throw Error(ErrorKind::kCheckpoint, flags.model + ": " + error);
  }
}

// Logits of one run, kept on disk for the next one: a model in memory at a time.
class LogitFile {
 public:
  LogitFile() : file_(std::tmpfile()) {
    if (file_ == nullptr) fail();
  }
  LogitFile(const LogitFile&) = delete;
  ~LogitFile() { std::fclose(file_); }

  void write(std::span<const float> row) {
    if (std::fwrite(row.data(), sizeof(float), row.size(), file_) != row.size()) fail();
  }
  void rewind() {
    if (std::fseek(file_, 0, SEEK_SET) != 0) fail();
  }
  void read(std::span<float> row) {
    if (std::fread(row.data(), sizeof(float), row.size(), file_) != row.size()) fail();
  }

 private:
  [[noreturn]] static void fail() {
    throw Error(ErrorKind::kMemory,
                "the temporary file for logits cannot be written or read; --max-tokens bounds "
                "its size: 4 bytes a token and id of the vocabulary");
  }
  std::FILE* file_;
};

ComparisonSummary evaluate(const EvalFlags& flags, const EngineFlags& reference,
                           const Windows& windows) {
  LogitFile file;
  run(reference, windows, [&](std::span<const float> logits) { file.write(logits); });
  file.rewind();
  std::vector<PositionComparison> positions;
  std::vector<float> row;
  size_t window = 0, at = 0;
  run(flags.engine, windows, [&](std::span<const float> logits) {
    row.resize(logits.size());
    file.read(row);
    const std::vector<int32_t>& ids = windows[window];
    if (at + 1 < ids.size()) positions.push_back(compare_logits(row, logits, ids[at + 1]));
    if (++at == ids.size()) ++window, at = 0;
  });
  return summarize(positions);
}

Json to_json(const EvalFlags& flags, const EngineFlags& reference, const Windows& windows,
             const ComparisonSummary& s) {
  return {{"model", flags.engine.model},
          {"text", flags.text},
          {"windows", windows.size()},
          {"window", flags.window},
          {"positions", s.positions},
          {"candidate", describe(flags.engine)},
          {"reference", describe(reference)},
          {"candidate_perplexity", std::exp(s.candidate_nll)},
          {"reference_perplexity", std::exp(s.reference_nll)},
          {"candidate_nll", s.candidate_nll},
          {"reference_nll", s.reference_nll},
          {"nll_difference_error", s.nll_difference_error},
          {"kl_mean", s.kl_mean},
          {"kl_median", s.kl_median},
          {"kl_99", s.kl_99},
          {"kl_max", s.kl_max},
          {"top1_agreement", s.top1_agreement}};
}

void print(const EvalFlags& flags, const EngineFlags& reference, const ComparisonSummary& s) {
  TextTable table({"configuration", ">perplexity", ">nats a token"});
  table.add({describe(reference), fixed_digits(std::exp(s.reference_nll), 4),
             fixed_digits(s.reference_nll, 5)});
  table.add({describe(flags.engine), fixed_digits(std::exp(s.candidate_nll), 4),
             fixed_digits(s.candidate_nll, 5)});
  std::printf("%s", table.plain().c_str());
  std::printf("the second against the first, %s positions:\n", with_commas(s.positions).c_str());
  std::printf("  nats a token    %+.5f +- %.5f\n", s.candidate_nll - s.reference_nll,
              s.nll_difference_error);
  std::printf("  KL divergence   mean %.6f, median %.6f, 99%% under %.5f, largest %.5f\n",
              s.kl_mean, s.kl_median, s.kl_99, s.kl_max);
  std::printf("  same top token  %.2f%%\n", 100 * s.top1_agreement);
}

void eval(const EvalFlags& flags) {
  const EngineFlags reference = reference_flags(flags);
  const Windows windows = cut_windows(flags, find_model(flags.engine.model, flags.engine.revision));
  const ComparisonSummary summary = evaluate(flags, reference, windows);
  if (flags.json) return print_json(to_json(flags, reference, windows, summary));
  print(flags, reference, summary);
}

}  // namespace

void add_eval(CLI::App& app) {
  const auto flags = std::make_shared<EvalFlags>();
  CLI::App* command = app.add_subcommand(
      "eval", "Show what a speed setting costs: perplexity, KL divergence and top-1 agreement");
  command->add_option("MODEL", flags->engine.model, "directory, or repo id in the cache")
      ->required();
  const auto add = [&](const char* name, auto& value, const char* text) {
    return command->add_option(name, value, text)->capture_default_str();
  };
  command->add_option("--text", flags->text, "a text file, in windows of --window tokens")
      ->required();
  add("--against", flags->against, "the reference: the same settings but for these, key=value,...");
  add("--window", flags->window, "tokens of a sequence")->check(CLI::Range(2, 131072));
  add("--max-tokens", flags->max_tokens, "of the text; 0: all")->check(CLI::NonNegativeNumber);
  command->add_flag(
      "--specials", flags->specials,
      "special tokens in the text are such: for conversations as the model sees them");
  command->add_flag("--json", flags->json, "print JSON");
  add_engine_flags(*command, flags->engine);
  command->callback([flags] { eval(*flags); });
}

}  // namespace nibble::cli
