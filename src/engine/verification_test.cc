// By enumeration of all drafts and all that may become of them: what is said has the model's own
// distribution. And the rule of drafts that are certain of themselves (speculation.h) is theirs.
#include "engine/verification.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <random>

#include "engine/philox.h"
#include "engine/sampler.h"

namespace nibble {
namespace {

using Ids = std::vector<int32_t>;
constexpr int32_t kVocab = 3, kDrafts = 2, kLength = kDrafts + 1;

Distribution any_distribution(std::mt19937_64& random) {
  std::uniform_real_distribution<double> uniform01(0, 1);
  Distribution d(kVocab);
  double sum = 0;
  for (double& value : d) value = std::pow(uniform01(random), 2), sum += value;
  for (double& value : d) value /= sum;
  return d;
}

// A model or a drafter: a distribution behind every text.
struct Language {
  std::map<Ids, Distribution> behind;
  const Distribution& operator()(const Ids& text) const { return behind.at(text); }
};

// `lacks`: an id that is never said; -1: none.
Language any_language(std::mt19937_64& random, bool is_certain = false, int32_t lacks = -1) {
  Language language;
  const std::function<void(Ids)> add = [&](const Ids& text) {
    Distribution d = any_distribution(random);
    if (lacks >= 0) {
      const double rest = 1 - d[lacks];
      d[lacks] = 0;
      for (double& value : d) value /= rest;
    }
    if (is_certain) {
      d.assign(kVocab, 0);
      d[random() % kVocab] = 1;
    }
    language.behind[text] = d;
    if (text.size() == kLength) return;
    for (int32_t v = 0; v < kVocab; ++v) {
      Ids more = text;
      more.push_back(v);
      add(more);
    }
  };
  add({});
  return language;
}

double probability(const Language& model, const Ids& text) {
  double p = 1;
  for (size_t i = 0; i < text.size(); ++i) p *= model(Ids(text.begin(), text.begin() + i))[text[i]];
  return p;
}

void each_text(size_t length, const std::function<void(const Ids&)>& see) {
  Ids text(length, 0);
  while (true) {
    see(text);
    size_t i = 0;
    while (i < length && ++text[i] == kVocab) text[i++] = 0;
    if (i == length) return;
  }
}

struct Said {
  std::map<Ids, double> of;  // probability of each text of kLength
  double kept = 0;           // drafts, in the mean
};

// All drafts, all that are kept of them, all that comes behind; the model goes on by itself.
Said enumerate(VerificationRule rule, const Language& model, const Language& drafter) {
  Said said;
  each_text(kDrafts, [&](const Ids& draft) {
    const double drawn = probability(drafter, draft);
    if (drawn == 0) return;
    std::vector<Distribution> p, q;
    for (int32_t i = 0; i <= kDrafts; ++i) {
      const Ids before(draft.begin(), draft.begin() + i);
      p.push_back(model(before));
      if (i < kDrafts) q.push_back(drafter(before));
    }
    const DrawnDrafts drafts{.p = p, .q = q, .ids = draft};
    const std::vector<double> kept = kept_probabilities(rule, drafts);
    for (int32_t n = 0; n <= kDrafts; ++n) {
      said.kept += drawn * kept[n] * n;
      const Distribution next = next_distribution(rule, drafts, n);
      each_text(kLength, [&](const Ids& text) {
        if (!std::equal(text.begin(), text.begin() + n, draft.begin())) return;
        double w = drawn * kept[n] * next[text[n]];
        for (int32_t i = n + 1; i < kLength; ++i) {
          w *= model(Ids(text.begin(), text.begin() + i))[text[i]];
        }
        said.of[text] += w;
      });
    }
  });
  return said;
}

TEST(Verification, KeepsTheModelsDistribution) {
  for (const uint64_t seed : {1, 2, 3, 4, 5}) {
    std::mt19937_64 random(seed);
    for (const bool is_certain : {false, true}) {
      const Language model = any_language(random), drafter = any_language(random, is_certain);
      Said said[2];
      for (const auto rule : {VerificationRule::kStandard, VerificationRule::kBlock}) {
        Said& s = said[rule == VerificationRule::kBlock];
        s = enumerate(rule, model, drafter);
        each_text(kLength, [&](const Ids& text) {
          EXPECT_NEAR(s.of[text], probability(model, text), 1e-12);
        });
      }
      EXPECT_GE(said[1].kept, said[0].kept - 1e-12);
      if (is_certain) {
        EXPECT_NEAR(said[1].kept, said[0].kept, 1e-12);
      }
    }
  }
}

// Of a reduced vocabulary: ids that it lacks are said as often as the model says them.
TEST(Verification, ADrafterMayLackIds) {
  for (const uint64_t seed : {1, 2, 3})
    for (int32_t lacks = 0; lacks < kVocab; ++lacks) {
      std::mt19937_64 random(seed);
      const Language model = any_language(random);
      const Language drafter = any_language(random, /*is_certain=*/false, lacks);
      for (const auto rule : {VerificationRule::kStandard, VerificationRule::kBlock}) {
        Said said = enumerate(rule, model, drafter);
        EXPECT_GT(said.kept, 0);
        each_text(kLength, [&](const Ids& text) {
          EXPECT_NEAR(said.of[text], probability(model, text), 1e-12);
        });
      }
    }
}

TEST(Verification, ADrafterEqualToTheModelIsAlwaysRight) {
  std::mt19937_64 random(9);
  const Language model = any_language(random);
  for (const auto rule : {VerificationRule::kStandard, VerificationRule::kBlock}) {
    EXPECT_NEAR(enumerate(rule, model, model).kept, kDrafts, 1e-12);
  }
}

// Chi-square of texts drawn by verify(): 27 cells, so 26 degrees of freedom; above 61.66 once in
// ten thousand.
TEST(Verification, LongRunsHaveTheModelsDistribution) {
  constexpr int32_t kRuns = 200'000;
  for (const auto rule : {VerificationRule::kStandard, VerificationRule::kBlock}) {
    std::mt19937_64 random(21);
    const Language model = any_language(random), drafter = any_language(random);
    std::map<Ids, int32_t> counts;
    const auto draw_from = [&](const Distribution& d) {
      return static_cast<int32_t>(std::discrete_distribution<>(d.begin(), d.end())(random));
    };
    for (int32_t run = 0; run < kRuns; ++run) {
      Ids draft;
      std::vector<Distribution> p, q;
      for (int32_t i = 0; i < kDrafts; ++i) {
        p.push_back(model(draft)), q.push_back(drafter(draft));
        draft.push_back(draw_from(q.back()));
      }
      p.push_back(model(draft));
      const Verified v =
          verify(rule, {.p = p, .q = q, .ids = draft}, uniform(3, run, 0), uniform(3, run, 1));
      Ids text(draft.begin(), draft.begin() + v.num_kept);
      text.push_back(v.next);
      while (text.size() < kLength) text.push_back(draw_from(model(text)));
      ++counts[text];
    }
    double chi_square = 0;
    each_text(kLength, [&](const Ids& text) {
      const double expected = kRuns * probability(model, text);
      chi_square += std::pow(counts[text] - expected, 2) / expected;
    });
    EXPECT_LT(chi_square, 61.66);
  }
}

// The rule of speculation.h: draw from p, and keep the draft where it was drawn. With its own
// random numbers that is both rules above for a q that is certain.
TEST(Verification, DrawingWhatWouldBeDrawnAnywayIsTheRuleForCertainDrafts) {
  std::mt19937_64 random(4);
  for (int32_t round = 0; round < 20; ++round) {
    const Distribution p = any_distribution(random);
    for (int32_t draft = 0; draft < kVocab; ++draft) {
      Distribution q(kVocab, 0.0);
      q[draft] = 1;
      const std::vector<Distribution> ps = {p, p}, qs = {q};
      const Ids ids = {draft};
      for (const auto rule : {VerificationRule::kStandard, VerificationRule::kBlock}) {
        const DrawnDrafts drafts{.p = ps, .q = qs, .ids = ids};
        EXPECT_NEAR(kept_probabilities(rule, drafts)[1], p[draft], 1e-12);
        const Distribution other = next_distribution(rule, drafts, 0);
        for (int32_t v = 0; v < kVocab; ++v) {
          EXPECT_NEAR(other[v], v == draft ? 0 : p[v] / (1 - p[draft]), 1e-12);
        }
      }
    }
  }
}

// Whatever is said of the drafts behind it, even what its drafter cannot have drawn.
TEST(Verification, WhatTheModelNeverSaysIsNeverKept) {
  const std::vector<Distribution> p(2, {0, 0.25, 0.75});
  const std::vector<Distribution> q = {{1, 0, 0}, {1, 0, 0}};
  const Ids ids = {0, 1};
  for (const VerificationRule rule : {VerificationRule::kStandard, VerificationRule::kBlock})
    EXPECT_EQ(kept_probabilities(rule, {.p = p, .q = q, .ids = ids}),
              (std::vector<double>{1, 0, 0}));
}

// The engine's sampler in long runs, as speculation.h uses it: a draft comes true with p(draft),
// and what is drawn in its place has the proportions of the others.
TEST(Verification, TheSamplerKeepsADraftAsOftenAsItIsLikely) {
  constexpr int32_t kRuns = 100'000;
  const std::vector<float> logits = {0.3f, -0.7f, 1.1f, 0.2f, -1.5f};
  for (const float temperature : {0.6f, 1.0f, 1.7f}) {
    double sum = 0;
    std::vector<double> p;
    for (const float x : logits) p.push_back(std::exp(x / temperature)), sum += p.back();
    for (const uint64_t seed : {1, 2, 3}) {
      Sampler sampler(5, {});
      std::vector<int32_t> counts(5);
      std::vector<TokenLogprob> top;
      for (int32_t run = 0; run < kRuns; ++run) {
        std::vector<float> row = logits;
        SamplingState state;
        state.seed = seed, state.index = run;
        const SamplingParams params{.temperature = temperature};
        ++counts[sampler.sample(row, params, state, {}, top).id];
      }
      double chi_square = 0;
      for (size_t v = 0; v < 5; ++v) {
        const double expected = kRuns * p[v] / sum;
        chi_square += std::pow(counts[v] - expected, 2) / expected;
      }
      EXPECT_LT(chi_square, 23.51);  // 4 degrees of freedom: once in ten thousand
    }
  }
}

}  // namespace
}  // namespace nibble
