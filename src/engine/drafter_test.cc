// What is drafted, by the words that came before.
#include <gtest/gtest.h>

#include <random>

#include "engine/ngram_drafter.h"
#include "engine/suffix_drafter.h"

namespace nibble {
namespace {

using Ids = std::vector<int32_t>;

std::unique_ptr<Sequence> sequence_of(const Ids& prompt, const Ids& output = {},
                                      const std::string& salt = "") {
  Request request;
  request.prompt = prompt;
  request.max_tokens = 64;
  request.cache_salt = salt;
  auto sequence = std::make_unique<Sequence>(std::move(request), 1);
  for (const int32_t id : output) sequence->append(id);
  return sequence;
}

Ids draft(Drafter& drafter, const Sequence& sequence, int32_t k) {
  Ids ids;
  drafter.propose(sequence, k, ids);
  return ids;
}

Ids ngram(const Ids& text, int32_t min, int32_t max, int32_t k) {
  NgramDrafter drafter(min, max);
  return draft(drafter, *sequence_of(text), k);
}

TEST(NgramDrafter, TheLongestMatchWhereItCameFirst) {
  EXPECT_EQ(ngram({1, 2, 3, 9, 1, 2, 3}, 2, 3, 2), (Ids{9, 1}));
  EXPECT_EQ(ngram({2, 3, 7, 1, 2, 3, 8, 4, 1, 2, 3}, 2, 3, 1), Ids{8});  // longer, though later
  EXPECT_EQ(ngram({2, 3, 7, 1, 2, 3, 8, 4, 1, 2, 3}, 2, 2, 1), Ids{7});  // no longer than two
  EXPECT_EQ(ngram({1, 2, 5, 1, 2, 6, 1, 2}, 1, 4, 3), (Ids{5, 1, 2}));   // the first of equals
  EXPECT_EQ(ngram({1, 2, 3, 9, 4, 2, 3}, 3, 5, 4), Ids{});               // shorter than asked for
  EXPECT_EQ(ngram({7, 7, 7, 7}, 1, 2, 5), (Ids{7, 7}));                  // up to the text's end
  EXPECT_EQ(ngram({5}, 1, 4, 3), Ids{});
}

// By the definition: for each length, the longest first, the first place.
TEST(NgramDrafter, AsByDefinition) {
  std::mt19937 random(5);
  for (int32_t round = 0; round < 2000; ++round) {
    Ids text(1 + random() % 30);
    for (int32_t& id : text) id = static_cast<int32_t>(random() % 3);
    const auto n = static_cast<int32_t>(text.size());
    const auto min = static_cast<int32_t>(1 + random() % 3);
    const auto max = min + static_cast<int32_t>(random() % 4);
    Ids expected;
    for (int32_t length = std::min(max, n - 1); length >= min && expected.empty(); --length) {
      for (int32_t at = 0; at + length < n && expected.empty(); ++at) {
        if (!std::equal(text.begin() + at, text.begin() + at + length, text.end() - length))
          continue;
        const int32_t end = std::min(n, at + length + 4);
        expected.assign(text.begin() + at + length, text.begin() + end);
      }
    }
    EXPECT_EQ(ngram(text, min, max, 4), expected) << "round " << round;
  }
}

SpeculationOptions suffix_options() {
  return {.method = SpeculationOptions::Method::kSuffix, .num_tokens = 8};
}

TEST(SuffixDrafter, AsManyDraftsAsTheMatchIsLong) {
  SuffixDrafter drafter(suffix_options());
  EXPECT_EQ(draft(drafter, *sequence_of({1, 2, 3, 4, 5, 6, 1, 2}), 8), (Ids{3, 4}));
  EXPECT_EQ(draft(drafter, *sequence_of({1, 2, 3, 4, 5, 6, 1, 2, 3, 4}), 8), (Ids{5, 6, 1, 2}));
  EXPECT_EQ(draft(drafter, *sequence_of({1, 2, 3, 4, 5, 6, 1, 2, 3, 4}), 3), (Ids{5, 6, 1}));
  EXPECT_EQ(draft(drafter, *sequence_of({1, 2, 3, 9, 2}), 8), Ids{});
}

TEST(SuffixDrafter, WhatFollowedMoreOften) {
  SuffixDrafter drafter(suffix_options());
  EXPECT_EQ(draft(drafter, *sequence_of({1, 2, 5, 1, 2, 6, 1, 2, 6, 1, 2}), 1), Ids{6});
  SpeculationOptions sure = suffix_options();
  sure.suffix_min_token_probability = 0.9;
  SuffixDrafter picky(sure);
  EXPECT_EQ(draft(picky, *sequence_of({1, 2, 5, 8, 1, 2, 6, 9, 1, 2}), 4), Ids{});
}

TEST(SuffixDrafter, GoesOnAsTheSequenceGrows) {
  SuffixDrafter drafter(suffix_options());
  const auto sequence = sequence_of({1, 2, 3, 4, 9});
  EXPECT_EQ(draft(drafter, *sequence, 8), Ids{});
  for (const int32_t id : {1, 2}) sequence->append(id);
  EXPECT_EQ(draft(drafter, *sequence, 8), (Ids{3, 4}));
  for (const int32_t id : {3, 7}) sequence->append(id);
  EXPECT_EQ(draft(drafter, *sequence, 8), Ids{});
}

TEST(SuffixDrafter, KnowsPastAnswersButNoneWithASalt) {
  SuffixDrafter drafter(suffix_options());
  drafter.has_ended(*sequence_of({50, 51}, {10, 11, 12, 13, 14}));
  drafter.has_ended(*sequence_of({50, 51}, {20, 21, 22, 23}, "mine"));
  EXPECT_EQ(draft(drafter, *sequence_of({3, 10, 11, 12}), 8), (Ids{13, 14}));
  EXPECT_EQ(draft(drafter, *sequence_of({3, 20, 21}), 8), Ids{});
  EXPECT_EQ(draft(drafter, *sequence_of({3, 50, 51}), 8), Ids{});  // of a prompt
  EXPECT_EQ(draft(drafter, *sequence_of({3, 13, 14}), 8), Ids{});  // nothing over an end
}

TEST(SuffixDrafter, ForgetsTheOldestAnswers) {
  SpeculationOptions options = suffix_options();
  options.suffix_max_requests = 2;
  SuffixDrafter drafter(options);
  for (int32_t i = 0; i < 3; ++i) {
    drafter.has_ended(*sequence_of({1}, {100 * i + 1, 100 * i + 2, 100 * i + 3}));
  }
  EXPECT_EQ(draft(drafter, *sequence_of({1, 2}), 8), Ids{});
  EXPECT_EQ(draft(drafter, *sequence_of({101, 102}), 8), Ids{103});
  EXPECT_EQ(draft(drafter, *sequence_of({201, 202}), 8), Ids{203});
}

// A ring that has been filled many times over finds what it still holds, and nothing else.
TEST(SuffixIndex, HoldsTheLatestTokens) {
  constexpr int32_t kCapacity = 64;
  SuffixIndex index(kCapacity);
  std::mt19937 random(3);
  Ids all;
  for (int32_t i = 0; i < 5000; ++i) {
    all.push_back(static_cast<int32_t>(random() % 40));
    index.append(all.back());
    const size_t at = random() % all.size();
    if (at < 2 || at + 3 > all.size()) continue;
    const Ids text(all.begin() + static_cast<int64_t>(at) - 2,
                   all.begin() + static_cast<int64_t>(at));
    Ids ids;
    index.draft(text, 1, {.depth = 8, .factor = 1, .min_token_probability = 0}, 0, ids);
    for (const int32_t id : ids) {  // it followed these two, lately
      bool followed = false;
      for (size_t p = all.size() - std::min<size_t>(all.size(), kCapacity); p + 2 < all.size();
           ++p) {
        followed = followed || (all[p] == text[0] && all[p + 1] == text[1] && all[p + 2] == id);
      }
      EXPECT_TRUE(followed) << "token " << i;
    }
    if (at + kCapacity - 2 > all.size()) {
      EXPECT_FALSE(ids.empty()) << "token " << i;
    }
  }
}

}  // namespace
}  // namespace nibble
