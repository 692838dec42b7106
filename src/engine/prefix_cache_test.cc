// The tree of prefixes by itself, and the KvCache that finds pages through it.
#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "engine/kv_cache.h"

namespace nibble {
namespace {

using Tokens = std::vector<int32_t>;

TEST(PrefixCache, NodesStayWhileTheyHaveChildrenPagesOrReferences) {
  PrefixCache cache(8, 2, 1);
  const int32_t root = cache.root("");
  cache.share(root);
  const int32_t a = cache.insert(root, Tokens{1, 2});
  cache.set_page(a, 0, 5);
  const int32_t b = cache.insert(a, Tokens{3, 4});
  cache.share(b);
  EXPECT_EQ(cache.insert(root, Tokens{1, 2}), a);
  EXPECT_EQ(cache.find(a, Tokens{3, 4}), b);
  EXPECT_EQ(cache.find(root, Tokens{3, 4}), PrefixCache::kNoNode);  // the same page elsewhere
  EXPECT_EQ(cache.find(a, Tokens{3, 5}), PrefixCache::kNoNode);
  EXPECT_EQ(cache.page(a, 0), 5);
  cache.release(root);
  cache.set_page(a, 0, KvLayer::kNoPage);
  EXPECT_EQ(cache.num_nodes(), 3);  // b holds them all
  cache.release(b);
  EXPECT_EQ(cache.num_nodes(), 0);
}

TEST(PrefixCache, ATextBeforeAnotherTokenIsANodeOfItsOwn) {
  PrefixCache cache(8, 2, 1);
  const int32_t root = cache.root("");
  cache.share(root);
  const int32_t a = cache.insert(root, Tokens{1, 2}, 7), b = cache.insert(root, Tokens{1, 2}, 8);
  for (const int32_t node : {a, b}) cache.share(node);
  EXPECT_NE(a, b);
  EXPECT_EQ(cache.parent(b), root);
  EXPECT_EQ(cache.behind(b), 8);
  EXPECT_EQ(cache.insert(root, Tokens{1, 2}, 7), a);
  EXPECT_EQ(cache.find(root, Tokens{1, 2}, 7), a);
  EXPECT_EQ(cache.find(root, Tokens{1, 2}, 8), b);
  const int32_t other = cache.find(root, Tokens{1, 2}, 9);
  EXPECT_TRUE(other == a || other == b);
  EXPECT_EQ(cache.find(root, Tokens{1, 3}, 7), PrefixCache::kNoNode);
  for (const int32_t node : {a, b, root}) cache.release(node);
  EXPECT_EQ(cache.num_nodes(), 0);
}

TEST(PrefixCache, SaltsHaveTreesOfTheirOwn) {
  PrefixCache cache(4, 1, 1);
  const int32_t one = cache.root("one"), two = cache.root("two");
  cache.share(one);
  cache.share(two);
  EXPECT_NE(one, two);
  const int32_t a = cache.insert(one, Tokens{7});
  cache.share(a);
  EXPECT_EQ(cache.find(two, Tokens{7}), PrefixCache::kNoNode);
  EXPECT_EQ(cache.root("one"), one);
  cache.release(a);
  cache.release(one);
  cache.release(two);
  EXPECT_EQ(cache.num_nodes(), 0);
}

TEST(PrefixCache, SaysWhenItIsFull) {
  PrefixCache cache(2, 1, 1);
  const int32_t root = cache.root("");
  cache.share(root);
  const int32_t a = cache.insert(root, Tokens{1});
  cache.share(a);
  EXPECT_EQ(cache.insert(a, Tokens{2}), PrefixCache::kNoNode);
  EXPECT_EQ(cache.root("other"), PrefixCache::kNoNode);
  EXPECT_EQ(cache.insert(root, Tokens{1}), a);
  EXPECT_EQ(PrefixCache(0, 1, 1).root(""), PrefixCache::kNoNode);
}

TEST(PagePool, TakesBlankPagesFirstThenPassingOnesThenTheLongestUnused) {
  PagePool pool(5);
  for (int32_t page = 0; page < 5; ++page) EXPECT_EQ(pool.take(), page);
  EXPECT_EQ(pool.take(), KvLayer::kNoPage);
  pool.drop(3, PagePool::kLasting);
  pool.drop(0, PagePool::kLasting);
  pool.drop(4, PagePool::kPassing);
  pool.drop(1, PagePool::kBlank);
  pool.drop(2, PagePool::kLasting);
  pool.share(3);  // used again: the youngest once it is dropped
  pool.drop(3, PagePool::kLasting);
  pool.blank(2);
  EXPECT_EQ(pool.num_free(), 5);
  for (int32_t page : {1, 2, 4, 0, 3}) EXPECT_EQ(pool.take(), page);
}

constexpr int32_t kPage = 4;
constexpr int32_t kMaxLen = 64;

ModelInfo info_of(int32_t window) {
  ModelInfo info;
  info.num_layers = 3;
  info.max_positions = kMaxLen;
  info.groups = {{.window = window, .layers = {0, 2}, .num_kv_heads = 1, .head_dim = 1},
                 {.window = kNoWindow, .layers = {1}, .num_kv_heads = 1, .head_dim = 1}};
  return info;
}

KvPlan plan_of(int32_t window_pages, int32_t full_pages, int32_t max_rollback = 0) {
  return {.options = {.page_size = kPage,
                      .dtype = DType::kF32,
                      .max_num_seqs = 4,
                      .max_step_tokens = 8,
                      .max_rollback = max_rollback,
                      .prefix_cache = true},
          .max_len = kMaxLen,
          .group_pages = {window_pages, full_pages}};
}

// What the pages hold of a text's position: a number that follows from all tokens up to there, so
// that a page of another text never passes for the right one.
float content(const Tokens& tokens, int32_t position) {
  int32_t x = 1;
  for (int32_t p = 0; p <= position; ++p) x = (x * 61 + tokens[p] + 1) % 1000003;
  return static_cast<float>(x);  // below 2^24: exact
}

float& value(const KvCache& kv, int32_t layer, int32_t slot, int32_t position) {
  const KvLayer& l = kv.state().layer(layer);
  const int32_t page = l.page_table[slot * l.max_pages + position / kPage];
  CHECK(page != KvLayer::kNoPage);
  return l.k.as<float>()[int64_t{page} * kPage + position % kPage];
}

// Computes positions up to the text's end, in steps of up to `chunk`; false where memory lacks.
bool compute(KvCache& kv, int32_t slot, const Tokens& tokens, int32_t chunk = 8) {
  while (kv.length(slot) < static_cast<int32_t>(tokens.size())) {
    const int32_t begin = kv.length(slot);
    const int32_t n = std::min(chunk, static_cast<int32_t>(tokens.size()) - begin);
    if (!kv.reserve(slot, n)) return false;
    for (int32_t p = begin; p < begin + n; ++p) {
      for (int32_t l = 0; l < 3; ++l) value(kv, l, slot, p) = content(tokens, p) + 0.25f * l;
    }
    kv.commit(slot, n, tokens);
  }
  return true;
}

Tokens text(int32_t length, int32_t salt) {
  Tokens tokens(length);
  for (int32_t i = 0; i < length; ++i) tokens[i] = i * 7 + salt;
  return tokens;
}

// Runs a prompt in a slot of its own and ends it; returns what it found.
int32_t live(KvCache& kv, const Tokens& tokens, const std::string& salt = "", bool reuse = true) {
  const int32_t slot = kv.open();
  const int32_t found = kv.adopt(slot, tokens, salt, reuse);
  CHECK(compute(kv, slot, tokens));
  kv.close(slot);
  return found;
}

TEST(KvPrefix, FindsWholePagesOfTheSameTextButNeverAll) {
  KvCache kv(info_of(6), plan_of(30, 30));
  EXPECT_EQ(live(kv, text(18, 0)), 0);
  EXPECT_EQ(live(kv, text(18, 0)), 16);
  EXPECT_EQ(live(kv, text(16, 0)), 12);  // one token at least is computed: it gives the logits
  EXPECT_EQ(live(kv, text(17, 0)), 16);
  EXPECT_EQ(live(kv, text(18, 1)), 0);
  Tokens other = text(18, 0);
  other[9] = 999;
  EXPECT_EQ(live(kv, other), 8);
  EXPECT_EQ(kv.usage(), 0);
}

TEST(KvPrefix, SaltsAndScoredPromptsFindNothing) {
  KvCache kv(info_of(6), plan_of(30, 30));
  EXPECT_EQ(live(kv, text(18, 0), "a"), 0);
  EXPECT_EQ(live(kv, text(18, 0), "b"), 0);
  EXPECT_EQ(live(kv, text(18, 0), "a", false), 0);
  EXPECT_EQ(live(kv, text(18, 0), "a"), 16);
}

TEST(KvPrefix, RunningSequencesShareTheirPages) {
  KvCache kv(info_of(6), plan_of(30, 10));
  const int32_t a = kv.open(), b = kv.open();
  kv.adopt(a, text(18, 0), "");
  ASSERT_TRUE(compute(kv, a, text(18, 0)));
  EXPECT_EQ(kv.adopt(b, text(20, 0), ""), 16);
  ASSERT_TRUE(compute(kv, b, text(20, 0)));
  EXPECT_EQ(kv.free_pages(), 10 - 5 - 1);
  for (int32_t p = 0; p < 18; ++p) EXPECT_EQ(value(kv, 1, b, p), content(text(18, 0), p) + 0.25f);
  kv.close(a);
  EXPECT_EQ(value(kv, 1, b, 3), content(text(18, 0), 3) + 0.25f);
}

TEST(KvPrefix, ForgetsTheLongestUnusedFirstAndEndsBeforeBeginnings) {
  KvCache kv(info_of(6), plan_of(60, 12));
  live(kv, text(17, 0));  // 5 pages, of which 4 are whole
  live(kv, text(17, 1));
  live(kv, text(17, 0));
  live(kv, text(25, 2));  // 7 pages: 4 blank ones, and the last 3 of text 1
  EXPECT_EQ(live(kv, text(17, 1)), 4);
  EXPECT_EQ(live(kv, text(17, 0)), 4);  // text 1 took a blank page and the last 3 of text 0
}

// A long prompt slides its window over many pages. Those at its end, where the next turn of a chat
// goes on, outlive the others, and all that another long prompt passes over.
TEST(KvPrefix, WindowsAtThePromptsEndOutliveWhatWasPassedOver) {
  KvCache kv(info_of(6), plan_of(10, 60));
  const int32_t slot = kv.open();
  kv.adopt(slot, text(40, 0), "");
  ASSERT_TRUE(compute(kv, slot, text(40, 0)));
  ASSERT_TRUE(compute(kv, slot, text(60, 0), 1));  // the answer
  kv.close(slot);
  live(kv, text(60, 1));
  Tokens next = text(60, 0);
  std::fill(next.begin() + 40, next.end(), 5);
  EXPECT_EQ(live(kv, next), 36);
}

// Where full pages are known and the window's are gone, the text is computed again, and this time
// the window at that place is kept.
TEST(KvPrefix, PlacesWhereTextsPartAreKeptTheSecondTime) {
  KvCache kv(info_of(6), plan_of(6, 60));
  const auto with_end = [](int32_t salt) {
    Tokens tokens = text(40, 0);
    std::fill(tokens.begin() + 20, tokens.end(), 1000 + salt);
    return tokens;
  };
  EXPECT_EQ(live(kv, with_end(1)), 0);
  EXPECT_EQ(live(kv, with_end(2)), 0);
  EXPECT_EQ(live(kv, with_end(3)), 20);
}

TEST(KvPrefix, WhatMayBeRolledBackIsNotShared) {
  KvCache kv(info_of(6), plan_of(30, 30, 3));
  const int32_t a = kv.open(), b = kv.open();
  Tokens tokens = text(10, 0);
  kv.adopt(a, tokens, "");
  ASSERT_TRUE(compute(kv, a, tokens));
  kv.rollback(a, 3);
  tokens.resize(7);
  tokens.insert(tokens.end(), {500, 501, 502, 503});
  ASSERT_TRUE(compute(kv, a, tokens));
  EXPECT_EQ(kv.adopt(b, text(10, 0), ""), 4);
  for (int32_t p = 0; p < 4; ++p) EXPECT_EQ(value(kv, 1, b, p), content(tokens, p) + 0.25f);
}

// A page that forks share, and part behind, is of the first one's text and next token. The other's
// text finds it, too.
TEST(KvPrefix, APageIsFoundBehindAnyOfTheTokensThatFollowIt) {
  KvCache kv(info_of(6), plan_of(30, 30, 1));
  const auto with_end = [](int32_t token) {
    Tokens tokens = text(kPage, 0);
    tokens.resize(kPage + 3, token);
    return tokens;
  };
  const int32_t a = kv.open();
  kv.adopt(a, with_end(100), "");
  ASSERT_TRUE(compute(kv, a, text(kPage, 0)));
  const int32_t b = kv.fork(a);
  ASSERT_TRUE(compute(kv, a, with_end(100)));
  ASSERT_TRUE(compute(kv, b, with_end(200)));
  for (const int32_t token : {100, 200, 300}) {
    const int32_t slot = kv.open();
    EXPECT_EQ(kv.adopt(slot, with_end(token), ""), kPage) << token;
    kv.close(slot);
  }
}

TEST(KvPrefix, WhatIsNotInAllLayersYetIsNotShared) {
  KvCache kv(info_of(20), plan_of(30, 30));
  const Tokens tokens = text(18, 0);
  const auto found = [&] {
    const int32_t slot = kv.open(), n = kv.adopt(slot, tokens, "");
    kv.close(slot);
    return n;
  };
  const int32_t a = kv.open();
  kv.adopt(a, tokens, "");
  kv.wrote(a, 0, tokens);
  ASSERT_TRUE(compute(kv, a, tokens));
  EXPECT_EQ(found(), 0);
  kv.wrote(a, 7, tokens);
  EXPECT_EQ(found(), 4);
  kv.wrote(a, 18, tokens);
  EXPECT_EQ(found(), 16);
  kv.close(a);
  EXPECT_EQ(live(kv, tokens), 16);
  EXPECT_EQ(live(kv, text(18, 1)), 0);  // in the same slot, where nobody says
  EXPECT_EQ(live(kv, text(18, 1)), 16);
}

// A page that is in the tree is to be written to (a hit's last token is computed again), the
// window's group has no page for a copy and the full one none for what follows: nothing is
// forgotten.
TEST(KvPrefix, WhatCannotBeReservedForgetsNothing) {
  KvCache kv(info_of(6), plan_of(5, 6, 1));
  EXPECT_EQ(live(kv, text(18, 0)), 0);
  const int32_t a = kv.open(), b = kv.open();
  EXPECT_EQ(kv.adopt(a, text(18, 0), ""), 16);
  kv.rollback(a, 1);
  ASSERT_TRUE(kv.reserve(b, kPage));
  ASSERT_EQ(kv.pool(0).num_free(), 2);
  ASSERT_EQ(kv.pool(1).num_free(), 1);
  EXPECT_FALSE(kv.reserve(a, 1 + 2 * kPage));
  kv.close(a);
  kv.close(b);
  EXPECT_EQ(live(kv, text(18, 0)), 16);
}

TEST(KvPrefix, WithoutTheCacheNothingIsFound) {
  KvPlan plan = plan_of(30, 30);
  plan.options.prefix_cache = false;
  KvCache kv(info_of(6), plan);
  live(kv, text(18, 0));
  EXPECT_EQ(live(kv, text(18, 0)), 0);
  EXPECT_EQ(kv.prefixes().num_nodes(), 0);
}

// Thousands of random lives over few pages, of texts that often start alike: whatever is taken over
// holds exactly what computing it would have written, in every group, and no page or node is lost.
class Lives {
 public:
  Lives(uint32_t seed, int32_t window, int32_t max_rollback)
      : random_(seed),
        window_(window),
        kv_(info_of(window), plan_of(window + 12, 24, max_rollback)) {}

  void run(int num_operations) {
    for (int i = 0; i < num_operations; ++i) {
      act();
      if (::testing::Test::HasFailure()) return;
    }
    while (!running_.empty()) close(running_.begin()->first);
    EXPECT_EQ(kv_.usage(), 0);
    EXPECT_GT(num_hits_, num_operations / 50);
    EXPECT_GT(num_refused_, num_operations / 200);
    // Other texts take every page, and then nothing refers to the old ones.
    for (int32_t i = 0; i < 10; ++i) live(kv_, text(kMaxLen, 5000 + 500 * i));
    EXPECT_LE(kv_.prefixes().num_nodes(), 2 * kMaxLen / kPage + 1);
  }

 private:
  int32_t any(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }

  void act() {
    if (any(0, 5) == 0 || running_.empty()) return open();
    auto at = std::next(running_.begin(), any(0, static_cast<int32_t>(running_.size()) - 1));
    const int32_t slot = at->first;
    const int32_t what = any(0, 11);
    if (what == 0) return close(slot);
    if (what == 1) return fork(slot);
    Tokens& tokens = at->second;
    const auto length = static_cast<int32_t>(tokens.size());
    for (int32_t n = std::min(any(1, 6), kMaxLen - length); n > 0; --n) tokens.push_back(any(0, 1));
    if (!compute(kv_, slot, tokens)) ++num_refused_, close(slot);
    check();
  }

  void open() {
    const int32_t slot = kv_.open();
    if (slot == KvCache::kNoSlot) return;
    Tokens tokens(any(1, 40));
    const int32_t part = any(0, 30);  // few different beginnings
    for (int32_t i = 0; i < static_cast<int32_t>(tokens.size()); ++i) {
      tokens[i] = i < part ? i % 3 : any(0, 1);
    }
    const int32_t found = kv_.adopt(slot, tokens, any(0, 3) == 0 ? "salt" : "", any(0, 9) > 0);
    num_hits_ += found > 0;
    running_[slot] = Tokens(tokens.begin(), tokens.begin() + found);
    check();
    running_[slot] = tokens;
    if (!compute(kv_, slot, tokens)) ++num_refused_, close(slot);
    check();
  }

  void fork(int32_t slot) {
    const int32_t copy = kv_.fork(slot);
    if (copy != KvCache::kNoSlot) running_[copy] = running_[slot];
    check();
  }

  void close(int32_t slot) {
    kv_.close(slot);
    running_.erase(slot);
  }

  void check() {
    for (const auto& [slot, tokens] : running_) {
      const auto length = static_cast<int32_t>(tokens.size());
      ASSERT_EQ(kv_.length(slot), length);
      for (int32_t l = 0; l < 3; ++l) {
        const int32_t first = l == 1 ? 0 : std::max(0, length - window_ + 1);
        for (int32_t p = first; p < length; ++p) {
          ASSERT_EQ(value(kv_, l, slot, p), content(tokens, p) + 0.25f * l) << "position " << p;
        }
      }
    }
  }

  std::mt19937 random_;
  int32_t window_;
  KvCache kv_;
  std::map<int32_t, Tokens> running_;  // by slot
  int num_hits_ = 0;
  int num_refused_ = 0;
};

TEST(KvPrefix, RandomLivesFindOnlyWhatIsTheirs) {
  uint32_t seed = 1;
  for (int32_t window : {1, 4, 6, 13}) {
    for (int32_t max_rollback : {0, 3}) Lives(seed++, window, max_rollback).run(3000);
  }
}

}  // namespace
}  // namespace nibble
