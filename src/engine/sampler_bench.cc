// One row of o200k's width (V = 201,088), logits as of a language model: a few high, a long tail.
#include "engine/sampler.h"

#include <benchmark/benchmark.h>

#include <cmath>
#include <vector>

#include "engine/philox.h"

namespace nibble {
namespace {

constexpr int32_t kVocab = 201088;

std::vector<float> language_like_row() {
  std::vector<float> row(kVocab);
  for (int32_t i = 0; i < kVocab; ++i) {
    // Zipf: p ~ 1 / rank^1.3 over ranks spread at random.
    row[i] = static_cast<float>(-1.3 * std::log(1 + uniform(1, i, 0) * kVocab));
  }
  return row;
}

void sample(benchmark::State& state, const SamplingParams& params) {
  const std::vector<float> original = language_like_row();
  std::vector<float> row = original;
  Sampler sampler(kVocab, {});
  std::vector<TokenLogprob> top;
  SamplingState sampling{.seed = 1, .index = 0, .counts = {}};
  for (auto _ : state) {
    benchmark::DoNotOptimize(sampler.sample(row, params, sampling, {}, top));
    ++sampling.index;
  }
}

BENCHMARK_CAPTURE(sample, greedy, SamplingParams{.temperature = 0});
BENCHMARK_CAPTURE(sample, plain, SamplingParams{});
BENCHMARK_CAPTURE(sample, top_p_95, SamplingParams{.top_p = 0.95f});
BENCHMARK_CAPTURE(sample, top_p_95_hot, SamplingParams{.temperature = 3, .top_p = 0.95f});
BENCHMARK_CAPTURE(sample, top_k_40, SamplingParams{.top_k = 40});
BENCHMARK_CAPTURE(sample, min_p_05, SamplingParams{.min_p = 0.05f});
BENCHMARK_CAPTURE(sample, greedy_logprobs_20, SamplingParams{.temperature = 0, .logprobs = 20});

}  // namespace
}  // namespace nibble
