#include "cli/bench_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <random>
#include <regex>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace nibble::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int32_t kPromptOfManyStreams = 128;

// What the streams of a case have produced so far. Shared with the requests: an engine that ends
// early tells them so.
struct Progress {
  int32_t started = 0;  // streams whose first token is out
  int32_t ended = 0;
  int64_t tokens = 0;
  std::string error;
};

std::vector<RequestId> submit(Engine& engine, const BenchCase& c, int32_t max_tokens, uint64_t seed,
                              const std::shared_ptr<Progress>& progress) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int32_t> any_id(0, engine.model().info().vocab_size - 1);
  std::vector<RequestId> ids;
  for (int32_t stream = 0; stream < c.streams; ++stream) {
    Request request;
    request.prompt.resize(static_cast<size_t>(c.depth + c.prompt));
    for (int32_t& id : request.prompt) id = any_id(random);
    if (!c.ids.empty()) request.prompt = c.ids;
    request.sampling.temperature = 0;
    request.max_tokens = max_tokens;
    request.on_output = [progress, first = true](const Output& output) mutable {
      if (output.id >= 0) {
        ++progress->tokens;
        if (std::exchange(first, false)) ++progress->started;
      }
      if (output.finish != FinishReason::kNone) ++progress->ended;
      if (output.finish == FinishReason::kError) progress->error = output.error;
    };
    const auto id = engine.submit(std::move(request));
    if (!id) throw Error(ErrorKind::kUsage, "bench " + c.test() + ": " + id.error());
    ids.push_back(*id);
  }
  return ids;
}

void step(Engine& engine, const Progress& progress) {
  engine.step();
  if (!progress.error.empty()) throw Error(ErrorKind::kUnsupported, progress.error);
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Prompt tokens behind the depth, until the first new token is out.
BenchSample run_prompt(Engine& engine, const BenchCase& c, uint64_t seed) {
  const auto shared = std::make_shared<Progress>();
  const Progress& progress = *shared;
  const int64_t before = engine.stats().prompt_tokens;
  submit(engine, c, 1, seed, shared);
  while (engine.stats().prompt_tokens - before < int64_t{c.depth} * c.streams)
    step(engine, progress);
  if (engine.stats().prompt_tokens - before != int64_t{c.depth} * c.streams) {
    throw Error(ErrorKind::kUsage, "bench " + c.test() +
                                       ": prompts are read in chunks of --max-num-batched-tokens, "
                                       "and the depth must be a multiple of that");
  }
  BenchSample sample;
  const auto start = Clock::now();
  for (; progress.ended < c.streams; ++sample.steps) step(engine, progress);
  sample.seconds = seconds_since(start);
  sample.tokens = int64_t{c.prompt} * c.streams;
  sample.mean_context = c.depth + c.prompt / 2.0;
  return sample;
}

void end_streams(Engine& engine, const std::vector<RequestId>& ids, const Progress& progress) {
  for (const RequestId id : ids) engine.cancel(id);
  while (progress.ended < static_cast<int32_t>(ids.size())) step(engine, progress);
}

// new_tokens steps from when every stream has its first token: all decode in each of them.
BenchSample run_decode(Engine& engine, const BenchCase& c, uint64_t seed) {
  const auto shared = std::make_shared<Progress>();
  const Progress& progress = *shared;
  const int32_t room = engine.max_model_len() - c.depth - c.prompt;
  const std::vector<RequestId> ids = submit(engine, c, room, seed, shared);
  while (progress.started < c.streams) step(engine, progress);
  BenchSample sample;
  const int64_t tokens_before = progress.tokens;
  const SpeculationCounts drafts_before = engine.stats().speculation;
  const auto start = Clock::now();
  for (; sample.steps < c.new_tokens; ++sample.steps) step(engine, progress);
  sample.seconds = seconds_since(start);
  sample.tokens = progress.tokens - tokens_before;
  sample.mean_context = c.depth + c.prompt + c.new_tokens / 2.0;
  sample.drafts = engine.stats().speculation - drafts_before;
  if (sample.tokens < int64_t{c.new_tokens} * c.streams) {
    throw Error(ErrorKind::kUsage, "bench " + c.test() +
                                       ": the context or the KV cache is too small for all streams "
                                       "to decode together; raise --max-model-len");
  }
  end_streams(engine, ids, progress);
  return sample;
}

}  // namespace

namespace {

BenchCase decode_case(int32_t new_tokens, int32_t depth, int32_t streams) {
  const int32_t prompt = streams == 1 ? (depth == 0 ? 1 : 0) : kPromptOfManyStreams;
  return {.prompt = prompt, .new_tokens = new_tokens, .depth = depth, .streams = streams};
}

}  // namespace

BenchCase parse_bench_case(const std::string& test, int32_t new_tokens) {
  static const std::regex kForm("(pp|tg ?)([0-9]{1,7})( @([0-9]{1,7}))?");
  std::smatch m;
  if (!std::regex_match(test, m, kForm) || std::stoi(m[2]) == 0) {
    throw Error(
        ErrorKind::kUsage,
        "--test " + test + ": expected \"pp512\", \"pp512 @4096\", \"tg 8\" or \"tg 1 @512\"");
  }
  const int32_t n = std::stoi(m[2]), depth = m[4].matched ? std::stoi(m[4]) : 0;
  if (m[1] == "pp") return {.prompt = n, .depth = depth};
  return decode_case(std::max(1, new_tokens), depth, n);
}

std::string BenchCase::test() const {
  std::string text = decodes() ? "tg " + std::to_string(streams) : "pp" + std::to_string(prompt);
  if (depth > 0) text += " @" + std::to_string(depth);
  return text;
}

int32_t BenchCase::sequence_length(int32_t max_num_batched_tokens) const {
  const int32_t prompts = (depth + prompt) * streams;
  // Prefill of all streams takes this many steps, in each of which an early stream may decode.
  const int32_t early = streams == 1 ? 0 : prompts / std::max(1, max_num_batched_tokens - streams);
  return depth + prompt + (new_tokens + early) * step_tokens + 2;
}

std::vector<BenchCase> bench_cases(const std::vector<int32_t>& prompts,
                                   const std::vector<int32_t>& new_tokens,
                                   const std::vector<int32_t>& depths,
                                   const std::vector<int32_t>& streams) {
  std::vector<BenchCase> cases;
  for (const int32_t depth : depths) {
    for (const int32_t prompt : prompts)
      if (prompt > 0) cases.push_back({.prompt = prompt, .depth = depth});
    for (const int32_t n : new_tokens) {
      if (n == 0) continue;
      for (const int32_t s : streams) cases.push_back(decode_case(n, depth, s));
    }
  }
  return cases;
}

BenchSample run_case(Engine& engine, const BenchCase& c, uint64_t seed) {
  return c.decodes() ? run_decode(engine, c, seed) : run_prompt(engine, c, seed);
}

void run_decode_steps(Engine& engine, const BenchCase& c, int steps,
                      const std::function<void()>& after_step) {
  const auto shared = std::make_shared<Progress>();
  const Progress& progress = *shared;
  const int32_t room = engine.max_model_len() - c.depth - c.prompt;
  const std::vector<RequestId> ids = submit(engine, c, room, 1, shared);
  while (progress.started < c.streams) step(engine, progress);
  for (int i = 0; i < steps; ++i) {
    step(engine, progress);
    if (progress.ended > 0) {
      throw Error(ErrorKind::kUsage, "bench " + c.test() + ": a context of " +
                                         std::to_string(engine.max_model_len()) +
                                         " tokens ends before " + std::to_string(steps) + " steps");
    }
    after_step();
  }
  end_streams(engine, ids, progress);
}

BenchRate rate_of(const std::vector<BenchSample>& samples) {
  CHECK(!samples.empty());
  double sum = 0, squares = 0;
  const auto n = static_cast<double>(samples.size());
  for (const BenchSample& s : samples) sum += static_cast<double>(s.tokens) / s.seconds;
  const double mean = sum / n;
  for (const BenchSample& s : samples) {
    const double off = static_cast<double>(s.tokens) / s.seconds - mean;
    squares += off * off;
  }
  return {.mean = mean, .deviation = n > 1 ? std::sqrt(squares / (n - 1)) : 0};
}

}  // namespace nibble::cli
