// What `nibble bench` measures: prompts and decoding through the engine, as a server would run
// them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace nibble::cli {

// One row of the table. Either prompt tokens are timed (new_tokens 0) or new ones.
struct BenchCase {
  int32_t prompt = 0;      // pp: tokens timed; tg: tokens before the first new one, at least 1
  int32_t new_tokens = 0;  // tg: steps timed, each one token of every stream, or more if drafted
  int32_t depth = 0;       // tokens in the context before either
  int32_t streams = 1;
  int32_t step_tokens = 1;        // tg: that one step may give a stream, where some are drafted
  std::vector<int32_t> ids = {};  // tg: the prompt of each stream; empty: random ones

  bool decodes() const { return new_tokens > 0; }
  // "pp512", "pp512 @4096"; "tg 1", "tg 1 @4096", "tg 8"
  std::string test() const;
  // Tokens that one sequence of it may grow to, for the context and the KV cache.
  int32_t sequence_length(int32_t max_num_batched_tokens) const;
};

// The cases of llama-bench's -p, -n, -d: pp for each p and d, tg for each n, d and streams. Zeros
// in p and n mean none. Several streams have a prompt of 128 each, one stream has none.
std::vector<BenchCase> bench_cases(const std::vector<int32_t>& prompts,
                                   const std::vector<int32_t>& new_tokens,
                                   const std::vector<int32_t>& depths,
                                   const std::vector<int32_t>& streams);

// The case that test() calls so: "pp512", "pp512 @4096", "tg 8", "tg 1 @512"; tg with `new_tokens`.
// Throws Error(kUsage).
BenchCase parse_bench_case(const std::string& test, int32_t new_tokens);

struct BenchSample {
  double seconds = 0;
  int64_t tokens = 0;  // of all streams
  int64_t steps = 0;
  double mean_context = 0;  // of a token that was timed
  SpeculationCounts drafts = {};
};

// Runs the case once on the caller's thread; the engine is not started and idle. Prompts are random
// ids of `seed`. Throws Error(kUsage) where the engine refuses (context or KV cache too small).
BenchSample run_case(Engine& engine, const BenchCase& bench_case, uint64_t seed);

// Brings all streams of a decoding case to where run_case() starts timing, runs `steps` steps,
// calls after_step() behind each, and ends them. Throws Error(kUsage) where the context ends
// before.
void run_decode_steps(Engine& engine, const BenchCase& bench_case, int steps,
                      const std::function<void()>& after_step);

// Mean and deviation of tokens per second.
struct BenchRate {
  double mean = 0;
  double deviation = 0;  // of the samples, n - 1; 0 for one
};
BenchRate rate_of(const std::vector<BenchSample>& samples);

}  // namespace nibble::cli
