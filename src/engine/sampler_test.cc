#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "engine/philox.h"

namespace nibble {
namespace {

// Test vectors that come with Random123 (kat_vectors, philox4x32 10).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0}, {0, 0, 0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u}, {~0u, ~0u, ~0u, ~0u}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformCoversTheUnitInterval) {
  double sum = 0, least = 1, most = 0;
  constexpr int kDraws = 10000;
  for (int i = 0; i < kDraws; ++i) {
    const double u = uniform(42, i, 0);
    sum += u;
    least = std::min(least, u);
    most = std::max(most, u);
  }
  EXPECT_GE(least, 0);
  EXPECT_LT(most, 1);
  // The mean of n uniforms has deviation 1 / sqrt(12 n) = 0.0029; five of them.
  EXPECT_NEAR(sum / kDraws, 0.5, 5 / std::sqrt(12.0 * kDraws));
  EXPECT_NE(uniform(42, 7, 0), uniform(42, 7, 1));
  EXPECT_NE(uniform(42, 7, 0), uniform(uint64_t{42} | uint64_t{1} << 32, 7, 0));
}

std::vector<float> random_logits(int32_t vocab, uint32_t seed, float spread) {
  std::mt19937 random(seed);
  std::vector<float> logits(vocab);
  for (float& x : logits) {
    x = spread * static_cast<float>(static_cast<int32_t>(random() % 20001) - 10000) / 10000;
  }
  return logits;
}

// The distribution as its definition reads, by a full sort, in double. Test of the sampler's fast
// ways; order of filters as sampler.h states.
std::vector<double> exact_distribution(const std::vector<float>& logits,
                                       const SamplingParams& params) {
  const size_t vocab = logits.size();
  std::vector<int32_t> order(vocab);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  std::vector<double> p(vocab);
  for (size_t i = 0; i < vocab; ++i) {
    p[i] = std::exp((double{logits[i]} - logits[order[0]]) / params.temperature);
  }
  std::vector<bool> kept(vocab, true);
  for (size_t i = 0; i < vocab; ++i) kept[i] = p[i] >= params.min_p;
  if (params.top_k > 0) {
    for (size_t r = params.top_k; r < vocab; ++r) kept[order[r]] = false;
  }
  double total = 0;
  for (size_t i = 0; i < vocab; ++i) total += kept[i] ? p[i] : 0;
  double sum = 0, nucleus = 0;
  for (int32_t i : order) {
    if (!kept[i]) continue;
    kept[i] = sum < params.top_p * total;
    sum += p[i];
    if (kept[i]) nucleus += p[i];
  }
  for (size_t i = 0; i < vocab; ++i) p[i] = kept[i] ? p[i] / nucleus : 0;
  return p;
}

struct Case {
  const char* name;
  SamplingParams params;
};

const Case kCases[] = {
    {"plain", {.temperature = 1}},
    {"cold", {.temperature = 0.5f}},
    {"hot", {.temperature = 3}},
    {"top_k 1", {.top_k = 1}},
    {"top_k 7", {.top_k = 7}},
    {"top_k 300", {.top_k = 300}},
    {"top_p 0.1", {.top_p = 0.1f}},
    {"top_p 0.9", {.top_p = 0.9f}},
    {"top_p 0.9 hot", {.temperature = 2, .top_p = 0.9f}},
    {"min_p 0.05", {.min_p = 0.05f}},
    {"min_p cold", {.temperature = 0.7f, .min_p = 0.2f}},
    {"all three", {.temperature = 1.3f, .top_p = 0.8f, .top_k = 40, .min_p = 0.02f}},
};

// Chi-square of `draws` draws against `p`; cells expected below 5 are put together. Never above
// 5 deviations beyond its mean for the fixed seeds used: degrees + 5 * sqrt(2 * degrees).
void expect_fits(const std::vector<int>& counts, const std::vector<double>& p, int draws,
                 const char* name) {
  double chi = 0, rare_expected = 0;
  int cells = 0, rare = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0) {
      EXPECT_EQ(counts[i], 0) << name << ": id " << i << " is filtered out";
    } else if (p[i] * draws < 5) {
      rare_expected += p[i] * draws;
      rare += counts[i];
    } else {
      chi += (counts[i] - p[i] * draws) * (counts[i] - p[i] * draws) / (p[i] * draws);
      ++cells;
    }
  }
  if (rare_expected > 0) {
    chi += (rare - rare_expected) * (rare - rare_expected) / rare_expected;
    ++cells;
  }
  const double degrees = std::max(1, cells - 1);
  EXPECT_LT(chi, degrees + 5 * std::sqrt(2 * degrees)) << name;
}

TEST(Sampler, DrawsFromTheExactDistribution) {
  constexpr int32_t kVocab = 1000;
  constexpr int kDraws = 20000;
  const std::vector<float> logits = random_logits(kVocab, 3, 6);
  Sampler sampler(kVocab, {});
  std::vector<TokenLogprob> top;
  for (const Case& c : kCases) {
    std::vector<int> counts(kVocab);
    for (int i = 0; i < kDraws; ++i) {
      std::vector<float> row = logits;
      const Sampler::Sampled s =
          sampler.sample(row, c.params, {.seed = 11, .index = i, .counts = {}}, {}, top);
      ASSERT_EQ(s.error, nullptr);
      ++counts[s.id];
    }
    expect_fits(counts, exact_distribution(logits, c.params), kDraws, c.name);
  }
}

// Ids that are kept, found by walking u from 0 to 1 on a small vocabulary with ties.
TEST(Sampler, TiesGoToTheLowestId) {
  const std::vector<float> logits = {1, 3, 3, 3, 2, 3};
  Sampler sampler(6, {});
  std::vector<TokenLogprob> top;
  const auto seen = [&](const SamplingParams& params) {
    std::map<int32_t, int> ids;
    for (int i = 0; i < 500; ++i) {
      std::vector<float> row = logits;
      ++ids[sampler.sample(row, params, {.seed = 1, .index = i, .counts = {}}, {}, top).id];
    }
    std::vector<int32_t> result;
    for (const auto& [id, n] : ids) result.push_back(id);
    return result;
  };
  EXPECT_EQ(seen({.temperature = 0}), (std::vector<int32_t>{1}));
  EXPECT_EQ(seen({.top_k = 2}), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(seen({.top_p = 0.5f}), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(seen({.min_p = 1}), (std::vector<int32_t>{1, 2, 3, 5}));
}

TEST(Sampler, AgreesWithItselfWhateverTheScratchHeldBefore) {
  constexpr int32_t kVocab = 5000;
  Sampler used(kVocab, {});
  std::vector<TokenLogprob> top, other_top;
  for (int i = 0; i < 50; ++i) {
    const SamplingParams& params = kCases[i % std::size(kCases)].params;
    std::vector<float> a = random_logits(kVocab, i, 8), b = a;
    const SamplingState state{.seed = 5, .index = i, .counts = {}};
    Sampler fresh(kVocab, {});
    EXPECT_EQ(used.sample(a, params, state, {}, top).id,
              fresh.sample(b, params, state, {}, other_top).id);
  }
}

TEST(Sampler, PenaltiesAndBiasAddUpAsDefined) {
  SamplingParams params{.temperature = 0,
                        .repetition_penalty = 2,
                        .presence_penalty = 0.5f,
                        .frequency_penalty = 0.25f,
                        .logit_bias = {{5, 1.5f}},
                        .logprobs = 0};
  SamplingState state;
  const std::vector<int32_t> prompt = {0, 1, 0};
  state.counts.start(prompt, 10);
  for (int32_t id : {2, 3, 2, 0}) state.counts.add_output(id);
  std::vector<float> row = {4, -1, 6, -2, 1, 1};
  const std::vector<float> original = row;
  Sampler sampler(6, {4});
  std::vector<TokenLogprob> top;
  const Sampler::Sampled s = sampler.sample(row, params, state, {}, top);
  // 0: 4 / 2 - 0.25 - 0.5; 1: -1 * 2; 2: 6 / 2 - 2 * 0.25 - 0.5; 3: -2 * 2 - 0.75; 5: 1 + 1.5
  EXPECT_EQ(row, (std::vector<float>{1.25f, -2, 2, -4.75f, -std::numeric_limits<float>::infinity(),
                                     2.5f}));
  EXPECT_EQ(s.id, 5);
  EXPECT_EQ(s.logprob, static_cast<float>(1 - log_sum_exp(original)));
}

// A draft is found by the same number as the id that it foretells.
TEST(Sampler, FindsWhatItWouldSample) {
  constexpr int32_t kVocab = 300;
  Sampler sampler(kVocab, {});
  std::vector<TokenLogprob> top;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SamplingParams params{.temperature = 0.25f * static_cast<float>(seed % 5)};
    if (seed % 2 == 0) params.top_p = 0.8f;
    if (seed % 3 == 0) params.top_k = 20;
    if (seed % 7 == 0) params.min_p = 0.05f;
    const std::vector<float> logits = random_logits(kVocab, seed, 4);
    const SamplingState state{.seed = seed, .index = 5, .counts = {}};
    std::vector<float> row = logits;
    const int32_t sampled = sampler.sample(row, params, state, {}, top).id;
    const ops::Draw draw{.temperature = params.temperature,
                         .min_p = params.min_p,
                         .top_p = params.top_p,
                         .top_k = params.top_k,
                         .u = uniform(seed, 5, 0)};
    EXPECT_EQ(sampler.find(logits, draw), sampled) << seed;
  }
  const std::vector<float> broken(kVocab, std::nanf(""));
  EXPECT_EQ(sampler.find(broken, {}), -1);
}

TEST(Sampler, MasksAndBans) {
  Sampler sampler(40, {39});
  std::vector<TokenLogprob> top;
  const std::vector<uint32_t> allowed = {0b1010, 0b10000001};  // 1, 3, 32, 39
  const std::vector<int32_t> banned = {3};
  std::map<int32_t, int> seen;
  for (int i = 0; i < 200; ++i) {
    std::vector<float> row(40, 1.0f);
    ++seen[sampler
               .sample(row, {}, {.seed = 1, .index = i, .counts = {}},
                       {.allowed = allowed, .banned = banned}, top)
               .id];
  }
  EXPECT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen.count(1) + seen.count(32), 2u);

  std::vector<float> row(40, 1.0f);
  const std::vector<uint32_t> only_banned = {0b1000, 0};
  EXPECT_EQ(sampler.sample(row, {}, {}, {.allowed = only_banned, .banned = banned}, top).id, 3);

  row.assign(40, 1.0f);
  const std::vector<uint32_t> none = {0, 0};
  const Sampler::Sampled s = sampler.sample(row, {}, {}, {.allowed = none, .banned = {}}, top);
  EXPECT_EQ(s.id, -1);
  EXPECT_NE(s.error, nullptr);
}

TEST(Sampler, RowsThatAreNotNumbersAreErrors) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                    -std::numeric_limits<float>::infinity()}) {
    for (int32_t at : {0, 17, 99}) {
      std::vector<float> row(100, 1.0f);
      row[at] = bad;
      std::vector<TokenLogprob> top;
      EXPECT_NE(Sampler(100, {}).sample(row, {}, {}, {}, top).error, nullptr);
    }
  }
}

// Numbers they are: some id is drawn, however far below zero all of them lie.
TEST(Sampler, RowsFarBelowZeroAreDrawnFrom) {
  constexpr float kLow = std::numeric_limits<float>::lowest();
  Sampler sampler(100, {});
  std::vector<TokenLogprob> top;
  for (const float x : {-1e38f, kLow / 2, kLow})
    for (const float top_p : {1.0f, 0.5f}) {
      std::vector<float> row(100, x);
      const Sampler::Sampled s = sampler.sample(row, {.temperature = 1, .top_p = top_p},
                                                {.seed = 3, .index = 0, .counts = {}}, {}, top);
      EXPECT_EQ(s.error, nullptr);
      EXPECT_TRUE(s.id >= 0 && s.id < 100) << x << " " << top_p << " " << s.id;
    }
}

TEST(Logprobs, TopIsWhatAFullSortGives) {
  std::vector<Candidate> work;
  std::vector<TokenLogprob> top;
  for (int32_t vocab : {1, 2, 500, 3000}) {
    std::vector<float> row = random_logits(vocab, vocab, 4);
    for (float& x : row) x = std::round(x * 20) / 20;  // many ties
    const double lse = log_sum_exp(row);
    std::vector<int32_t> order(vocab);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
    for (int32_t k : {0, 1, 5, 300, 5000}) {
      top_logprobs(row, lse, k, work, top);
      ASSERT_EQ(static_cast<int32_t>(top.size()), std::min(k, vocab));
      for (size_t i = 0; i < top.size(); ++i) {
        EXPECT_EQ(top[i].id, order[i]);
        EXPECT_EQ(top[i].logprob, static_cast<float>(row[order[i]] - lse));
      }
    }
  }
}

TEST(Logprobs, LogSumExpAgreesWithDouble) {
  for (float spread : {0.1f, 10.0f, 80.0f}) {
    const std::vector<float> row = random_logits(200000, 9, spread);
    double sum = 0;
    for (float x : row) sum += std::exp(double{x});
    // Each float exp is within 1 ulp (2^-23) of its term, so the sum is within 2^-23 relative, and
    // x - max is off by half an ulp of 2 * spread: that much more in the exponent.
    EXPECT_NEAR(log_sum_exp(row), std::log(sum), 0x1p-23 + 0x1p-24 * 2 * spread);
  }
}

}  // namespace
}  // namespace nibble
