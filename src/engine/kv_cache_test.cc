#include "engine/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace nibble {
namespace {

constexpr int32_t kPage = 4;
constexpr int32_t kWindow = 6;
constexpr int32_t kMaxLen = 64;

ModelInfo tiny_info() {
  ModelInfo info;
  info.num_layers = 3;
  info.max_positions = kMaxLen;
  info.groups = {{.window = kWindow, .layers = {0, 2}, .num_kv_heads = 2, .head_dim = 1},
                 {.window = kNoWindow, .layers = {1}, .num_kv_heads = 2, .head_dim = 1}};
  return info;
}

KvPlan tiny_plan(int32_t window_pages, int32_t full_pages, int32_t num_seqs = 4) {
  return {.options = {.page_size = kPage,
                      .dtype = DType::kF32,
                      .max_num_seqs = num_seqs,
                      .max_step_tokens = 8,
                      .max_rollback = 3},
          .max_len = kMaxLen,
          .group_pages = {window_pages, full_pages}};
}

int32_t entry(const KvCache& kv, int32_t layer, int32_t slot, int32_t page) {
  const KvLayer& l = kv.state().layer(layer);
  return l.page_table[slot * l.max_pages + page];
}

float& value(const KvCache& kv, int32_t layer, int32_t slot, int32_t position) {
  const KvLayer& l = kv.state().layer(layer);
  const int32_t page = entry(kv, layer, slot, position / kPage);
  CHECK(page != KvLayer::kNoPage);
  return l.k.as<float>()[int64_t{page} * 2 * kPage + position % kPage];
}

TEST(KvCache, LayersOfAGroupShareATableButNotMemory) {
  KvCache kv(tiny_info(), tiny_plan(8, 8));
  EXPECT_EQ(kv.state().layer(0).page_table, kv.state().layer(2).page_table);
  EXPECT_NE(kv.state().layer(0).page_table, kv.state().layer(1).page_table);
  std::set<void*> memory;
  for (int32_t l = 0; l < 3; ++l) {
    EXPECT_EQ(kv.state().layer(l).max_pages, kMaxLen / kPage);
    memory.insert(kv.state().layer(l).k.data);
    memory.insert(kv.state().layer(l).v.data);
  }
  EXPECT_EQ(memory.size(), 6u);
}

TEST(KvCache, WindowPagesAreGivenBackFullOnesStay) {
  KvCache kv(tiny_info(), tiny_plan(8, 8));
  const int32_t s = kv.open();
  for (int32_t length = 1; length <= 20; ++length) {
    ASSERT_TRUE(kv.reserve(s, 1));
    kv.commit(s, 1);
  }
  // The next token sees positions 15 to 20, and 3 tokens may be taken back: from 12 on.
  EXPECT_EQ(entry(kv, 0, s, 2), KvLayer::kNoPage);
  EXPECT_NE(entry(kv, 0, s, 3), KvLayer::kNoPage);
  EXPECT_NE(entry(kv, 1, s, 0), KvLayer::kNoPage);
  EXPECT_EQ(kv.pool(0).num_free(), 8 - 2);
  EXPECT_EQ(kv.pool(1).num_free(), 8 - 5);
  kv.close(s);
  EXPECT_EQ(kv.pool(0).num_free(), 8);
  EXPECT_EQ(kv.usage(), 0);
  EXPECT_EQ(entry(kv, 1, s, 0), KvLayer::kNoPage);
}

TEST(KvCache, ReserveIsAllOrNothing) {
  KvCache kv(tiny_info(), tiny_plan(8, 2));
  const int32_t s = kv.open();
  EXPECT_FALSE(kv.reserve(s, 9));
  EXPECT_EQ(kv.pool(0).num_free(), 8);
  EXPECT_EQ(kv.pool(1).num_free(), 2);
  EXPECT_TRUE(kv.reserve(s, 8));
  EXPECT_EQ(kv.free_pages(), 0);
  EXPECT_EQ(kv.held_pages(s), 2);
}

TEST(KvCache, CommitGivesBackWhatWasReservedForMore) {
  KvCache kv(tiny_info(), tiny_plan(8, 8));
  const int32_t s = kv.open();
  ASSERT_TRUE(kv.reserve(s, 8));
  kv.commit(s, 3);  // five drafts were wrong
  EXPECT_EQ(kv.length(s), 3);
  EXPECT_EQ(kv.free_pages(), 7);
  kv.rollback(s, 2);
  EXPECT_EQ(kv.length(s), 1);
  kv.rollback(s, 1);
  EXPECT_EQ(kv.free_pages(), 8);
}

TEST(KvCache, CommitKeepsWhatIsReservedAhead) {
  KvCache kv(tiny_info(), tiny_plan(8, 8));
  const int32_t s = kv.open();
  ASSERT_TRUE(kv.reserve(s, 5));
  const int32_t page = entry(kv, 1, s, 1);
  kv.commit(s, 4, {}, 1);
  EXPECT_EQ(kv.length(s), 4);
  EXPECT_EQ(kv.free_pages(), 6);
  ASSERT_TRUE(kv.reserve(s, 1));
  EXPECT_EQ(entry(kv, 1, s, 1), page);  // a step may be writing to it
  kv.close(s);
  EXPECT_EQ(kv.free_pages(), 8);
}

TEST(KvCache, RollbackKeepsTheWindow) {
  KvCache kv(tiny_info(), tiny_plan(8, 8));
  const int32_t s = kv.open();
  for (int32_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(kv.reserve(s, 1));
    value(kv, 0, s, i) = static_cast<float>(i);
    kv.commit(s, 1);
  }
  kv.rollback(s, 3);
  for (int32_t p = 17 - kWindow + 1; p < 17; ++p) EXPECT_EQ(value(kv, 0, s, p), p);
  EXPECT_DEATH(kv.rollback(s, 9), "CHECK failed");
}

TEST(KvCache, OpensNoMoreThanItHasSlots) {
  KvCache kv(tiny_info(), tiny_plan(8, 8, 2));
  EXPECT_EQ(kv.open(), 0);
  EXPECT_EQ(kv.open(), 1);
  EXPECT_EQ(kv.open(), KvCache::kNoSlot);
  EXPECT_EQ(kv.fork(0), KvCache::kNoSlot);
  kv.close(0);
  EXPECT_EQ(kv.open(), 0);
}

TEST(KvCache, ForkSharesPagesUntilOneWrites) {
  KvCache kv(tiny_info(), tiny_plan(8, 8));
  const int32_t a = kv.open();
  ASSERT_TRUE(kv.reserve(a, 6));
  for (int32_t i = 0; i < 6; ++i) value(kv, 1, a, i) = value(kv, 2, a, i) = 10 + i;
  kv.commit(a, 6);
  const int32_t b = kv.fork(a);
  EXPECT_EQ(kv.free_pages(), 6);
  EXPECT_EQ(entry(kv, 1, a, 1), entry(kv, 1, b, 1));

  ASSERT_TRUE(kv.reserve(b, 1));  // writes position 6 of the second page: copies it
  value(kv, 1, b, 6) = 99;
  kv.commit(b, 1);
  EXPECT_EQ(kv.free_pages(), 5);
  EXPECT_EQ(entry(kv, 1, a, 0), entry(kv, 1, b, 0));
  EXPECT_NE(entry(kv, 1, a, 1), entry(kv, 1, b, 1));
  EXPECT_EQ(value(kv, 1, b, 5), 15);
  EXPECT_EQ(value(kv, 2, b, 5), 15);

  ASSERT_TRUE(kv.reserve(a, 1));  // its own by now
  EXPECT_EQ(kv.free_pages(), 5);
  value(kv, 1, a, 6) = 77;
  kv.commit(a, 1);
  EXPECT_EQ(value(kv, 1, b, 6), 99);
  kv.close(a);
  EXPECT_EQ(value(kv, 1, b, 3), 13);
  kv.close(b);
  EXPECT_EQ(kv.free_pages(), 8);
}

// Thousands of random operations beside a plain model of the same sequences: every visible
// position reads back what its sequence wrote, and pages in use are exactly those in the tables.
class Accounting {
 public:
  explicit Accounting(uint32_t seed) : random_(seed), kv_(tiny_info(), tiny_plan(14, 20)) {}

  void run(int num_operations) {
    for (int i = 0; i < num_operations; ++i) {
      act();
      check();
      if (::testing::Test::HasFailure()) return;
    }
    while (!sequences_.empty()) close(sequences_.begin()->first);
    check();
    EXPECT_EQ(kv_.usage(), 0);
    EXPECT_GT(num_refused_, 10);
    EXPECT_GT(num_forks_, 10);
  }

 private:
  int32_t any(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }

  void act() {
    const int32_t what = any(0, 19);
    if (what == 0 || sequences_.empty()) {
      const int32_t slot = kv_.open();
      if (slot != KvCache::kNoSlot) sequences_[slot] = {};
      return;
    }
    auto at = std::next(sequences_.begin(), any(0, static_cast<int32_t>(sequences_.size()) - 1));
    auto& [slot, values] = *at;
    const auto length = static_cast<int32_t>(values.size());
    if (what == 1) {
      close(slot);
    } else if (what == 2) {
      const int32_t copy = kv_.fork(slot);
      if (copy != KvCache::kNoSlot) sequences_[copy] = values, ++num_forks_;
    } else if (what <= 4) {
      const int32_t n = any(0, std::min({3, length, since_commit_[slot]}));
      kv_.rollback(slot, n);
      since_commit_[slot] -= n;
      values.resize(length - n);
    } else {
      grow(slot, values, std::min(any(1, 8), kMaxLen - length));
    }
  }

  void grow(int32_t slot, std::vector<float>& values, int32_t n) {
    if (!kv_.reserve(slot, n)) {
      ++num_refused_;
      return;
    }
    const int32_t accepted = any(0, n);
    for (int32_t i = 0; i < n; ++i) {
      const float x = static_cast<float>(next_value_++);
      const auto position = static_cast<int32_t>(values.size()) + (i < accepted ? 0 : i - accepted);
      for (int32_t l = 0; l < 3; ++l) value(kv_, l, slot, position) = x + 0.25f * l;
      if (i < accepted) values.push_back(x);
    }
    kv_.commit(slot, accepted);
    since_commit_[slot] = std::min(since_commit_[slot] + accepted, 3);
  }

  void close(int32_t slot) {
    kv_.close(slot);
    sequences_.erase(slot);
    since_commit_.erase(slot);
  }

  void check() {
    for (const auto& [slot, values] : sequences_) {
      const auto length = static_cast<int32_t>(values.size());
      ASSERT_EQ(kv_.length(slot), length);
      for (int32_t l = 0; l < 3; ++l) {
        const int32_t first = l == 1 ? 0 : std::max(0, length - kWindow + 1);
        for (int32_t p = first; p < length; ++p) {
          ASSERT_EQ(value(kv_, l, slot, p), values[p] + 0.25f * l) << "position " << p;
        }
      }
    }
    for (int32_t g = 0; g < 2; ++g) check_references(g);
  }

  void check_references(int32_t group) {
    std::map<int32_t, int32_t> uses;
    for (int32_t slot = 0; slot < 4; ++slot) {
      for (int32_t p = 0; p < kMaxLen / kPage; ++p) {
        const int32_t page = entry(kv_, group, slot, p);
        if (page != KvLayer::kNoPage) ++uses[page];
      }
    }
    const PagePool& pool = kv_.pool(group);
    for (const auto& [page, n] : uses) ASSERT_EQ(pool.references(page), n);
    ASSERT_EQ(pool.num_pages() - pool.num_free(), static_cast<int32_t>(uses.size()));
  }

  std::mt19937 random_;
  KvCache kv_;
  std::map<int32_t, std::vector<float>> sequences_;  // by slot: what each position holds
  std::map<int32_t, int32_t> since_commit_;          // tokens that may be taken back, 3 at most
  int32_t next_value_ = 1;
  int num_refused_ = 0;
  int num_forks_ = 0;
};

TEST(KvCache, RandomOperationsLoseNoPageAndUseNoneTwice) {
  for (uint32_t seed = 1; seed <= 5; ++seed) Accounting(seed).run(3000);
}

}  // namespace
}  // namespace nibble
