// What the GPU draws (ops/sample/draw.h) against the engine's sampler, and against the
// distribution.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "engine/philox.h"
#include "engine/sampler.h"
#include "ops/gpu_test_problem.h"
#include "ops/sample/draw.h"

namespace nibble {
namespace {

constexpr uint64_t kSeed = 9;

// Rows of the same logits, each drawn once, by the numbers of one seed.
struct Problem {
  Problem(int32_t ids, float deviation) : vocab(ids), logits(ids) {
    std::mt19937 random(ids);
    std::normal_distribution<float> normal(0, deviation);
    for (float& x : logits) x = normal(random);
  }

  std::vector<ops::Greedy> on_gpu(const SamplingParams& params, int32_t rows) {
    ops::GpuProblem gpu(ops::gpu::sample_scratch_bytes(rows));
    ops::Floats all(rows, vocab);
    std::vector<ops::Draw> draws(rows);
    for (int32_t r = 0; r < rows; ++r) {
      std::copy(logits.begin(), logits.end(), all.values.begin() + int64_t{r} * vocab);
      draws[r] = {.temperature = params.temperature,
                  .min_p = params.min_p,
                  .top_p = params.top_p,
                  .top_k = params.top_k,
                  .u = uniform(kSeed, r, 0)};
    }
    std::vector<uint32_t> never;
    if (!masked.empty()) never.resize((vocab + 31) / 32);
    for (const int32_t id : masked) never[id / 32] |= 1u << (id % 32);
    const Tensor out = gpu.output(DType::kI32, {rows, 2}), ids = gpu.output(DType::kI32, {rows});
    auto* const to = reinterpret_cast<ops::Greedy*>(out.as<int32_t>());
    const std::vector<int32_t> turn = {0};
    const ops::GreedyOut found{to, rows, gpu.array(turn), ids.as<int32_t>()};
    const Tensor on_device = gpu.tensor(all, DType::kF32);
    const uint32_t* const mask = gpu.array(never);
    ops::sample_greedy(gpu.cx, found, on_device, mask);
    ops::sample_drawn(gpu.cx, found, on_device, mask, gpu.array(draws));
    const std::vector<ops::Greedy> got = gpu.values<ops::Greedy>(to, rows);
    const std::vector<int32_t> fed = gpu.values<int32_t>(ids.data, rows);
    for (int32_t r = 0; r < rows; ++r) EXPECT_EQ(fed[r], std::max(0, got[r].id));
    return got;
  }
  std::vector<Sampler::Sampled> on_host(SamplingParams params, int32_t rows) {
    Sampler sampler(vocab, masked);
    std::vector<Sampler::Sampled> sampled;
    params.logprobs = 0;
    std::vector<TokenLogprob> top;
    for (int32_t r = 0; r < rows; ++r) {
      std::vector<float> row = logits;
      SamplingState state;
      state.seed = kSeed, state.index = r;
      sampled.push_back(sampler.sample(row, params, state, {}, top));
    }
    return sampled;
  }

  int32_t vocab;
  std::vector<float> logits;
  std::vector<int32_t> masked;
};

std::vector<SamplingParams> settings() {
  std::vector<SamplingParams> all;
  for (const float temperature : {1.0f, 0.3f, 4.0f})
    for (const int32_t top_k : {0, 1, 40})
      for (const float top_p : {1.0f, 0.9f, 0.2f})
        for (const float min_p : {0.0f, 0.05f}) {
          SamplingParams p;
          p.temperature = temperature, p.top_k = top_k, p.top_p = top_p, p.min_p = min_p;
          all.push_back(p);
        }
  return all;
}

std::string text_of(const SamplingParams& p) {
  return "temperature " + std::to_string(p.temperature) + " top_k " + std::to_string(p.top_k) +
         " top_p " + std::to_string(p.top_p) + " min_p " + std::to_string(p.min_p);
}

// Sums on the host are of float weights; on the GPU weights are off by 2^-21 (the fast exponential)
// and 2^-27 t (the key). A border between two ids moves by less than 2^-20 of all; each id has two,
// and 700 ids one draw in 1,500 that lands beside its border. A cut by top_p or min_p may take one
// id more or less, of weight below 1 / 100 where there are many.
TEST(SampleDrawnGpu, DrawsWhatTheHostDraws) {
  Problem p(700, 3);
  p.masked = {5, 699};
  constexpr int32_t kRows = 300;
  for (const SamplingParams& params : settings()) {
    SCOPED_TRACE(text_of(params));
    const std::vector<ops::Greedy> gpu = p.on_gpu(params, kRows);
    const std::vector<Sampler::Sampled> host = p.on_host(params, kRows);
    int others = 0;
    for (int32_t r = 0; r < kRows; ++r) {
      others += gpu[r].id != host[r].id;
      if (gpu[r].id != host[r].id) continue;
      EXPECT_NEAR(gpu[r].logprob, host[r].logprob, 2e-5);
    }
    EXPECT_LE(others, kRows / 100);
  }
}

// At the size of a vocabulary, and equal logits among the last that are in: lower ids first.
TEST(SampleDrawnGpu, DrawsWhatTheHostDrawsOfAVocabulary) {
  Problem p(201088, 2);
  for (int32_t i = 0; i < p.vocab; i += 3) p.logits[i] = std::round(p.logits[i] * 4) / 4;
  constexpr int32_t kRows = 16;
  for (const auto& [top_k, top_p] : {std::pair{1000, 1.0f}, {0, 0.3f}, {5000, 0.5f}}) {
    SamplingParams params;
    params.top_k = top_k, params.top_p = top_p;
    SCOPED_TRACE(text_of(params));
    const std::vector<ops::Greedy> gpu = p.on_gpu(params, kRows);
    const std::vector<Sampler::Sampled> host = p.on_host(params, kRows);
    int others = 0;
    for (int32_t r = 0; r < kRows; ++r) others += gpu[r].id != host[r].id;
    EXPECT_LE(others, 1);
  }
}

// Pearson's sum over n bins has mean n - 1 and deviation sqrt(2 (n - 1)): five of them.
TEST(SampleDrawnGpu, FollowsTheDistribution) {
  Problem p(300, 1);
  SamplingParams params;
  params.temperature = 0.8f;
  constexpr int32_t kRows = 30000;
  std::vector<int32_t> counts(p.vocab);
  for (const ops::Greedy& drawn : p.on_gpu(params, kRows)) ++counts[drawn.id];
  std::vector<double> weights(p.vocab);
  for (int32_t i = 0; i < p.vocab; ++i) weights[i] = std::exp(double{p.logits[i]} / 0.8);
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  double chi = 0;
  for (int32_t i = 0; i < p.vocab; ++i) {
    const double want = kRows * weights[i] / all;
    chi += (counts[i] - want) * (counts[i] - want) / want;
  }
  EXPECT_NEAR(chi, p.vocab - 1, 5 * std::sqrt(2.0 * (p.vocab - 1)));
}

TEST(SampleDrawnGpu, TellsRowsThatAreNotNumbersAndLeavesOthersAlone) {
  Problem p(100, 1);
  SamplingParams params;
  p.logits[7] = NAN;
  EXPECT_EQ(p.on_gpu(params, 1)[0].id, ops::Greedy::kNotFinite);
  p.logits[7] = 0;
  for (int32_t i = 0; i < 100; ++i) p.masked.push_back(i);
  EXPECT_EQ(p.on_gpu(params, 1)[0].id, ops::Greedy::kNone);

  ops::GpuProblem gpu(ops::gpu::sample_scratch_bytes(1));  // no temperature: what is there stays
  const Tensor out = gpu.output(DType::kI32, {1, 2}), ids = gpu.output(DType::kI32, {1});
  auto* const to = reinterpret_cast<ops::Greedy*>(out.as<int32_t>());
  const std::vector<int32_t> turn = {0};
  ops::Floats row(1, 100);
  ops::sample_drawn(gpu.cx, {to, 1, gpu.array(turn), ids.as<int32_t>()},
                    gpu.tensor(row, DType::kF32), nullptr, gpu.array(std::vector<ops::Draw>(1)));
  EXPECT_EQ(gpu.values<int32_t>(ids.data, 1)[0], -1);  // garbage
}

}  // namespace
}  // namespace nibble
