// States of recurrent layers in the KvCache: whatever becomes of steps, sequences and texts, a step
// reads the state behind exactly the tokens before it, and their pages.
#include "engine/state_slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "engine/kv_cache.h"

namespace nibble {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int32_t kPage = 4;
constexpr int32_t kWindow = 6;
constexpr int32_t kMaxLen = 200;

ModelInfo tiny_info() {
  ModelInfo info;
  info.num_layers = 3;
  info.max_positions = kMaxLen;
  info.groups = {{.window = kWindow, .layers = {0}, .num_kv_heads = 1, .head_dim = 1},
                 {.layers = {1}, .num_kv_heads = 1, .head_dim = 1},
                 {.layers = {2}, .recurrent = {1, 1, 2, 1, 2}}};
  return info;
}

KvPlan tiny_plan(int32_t pages, int32_t num_slots, int32_t num_seqs = 4) {
  return {.options = {.page_size = kPage,
                      .dtype = DType::kF32,
                      .max_num_seqs = num_seqs,
                      .max_step_tokens = 64,
                      .prefix_cache = true},
          .max_len = kMaxLen,
          .group_pages = {pages, pages, 0},
          .state_slots = num_slots};
}

// Works in order, but as late as it likes, as a GPU does.
struct Device {
  std::deque<std::function<void()>> work;
  void run_all() {
    for (; !work.empty(); work.pop_front()) work.front()();
  }
};

class LatePages : public PageMemory {
 public:
  LatePages(int64_t bytes, Device& device) : arena_(bytes), device_(device) {}
  Tensor take(DType dtype, std::initializer_list<int64_t> shape) override {
    return arena_.take(dtype, shape);
  }
  void copy_page(const Tensor& pages, int32_t from, int32_t to) override {
    float* const data = pages.as<float>();
    device_.work.push_back([=] { std::copy_n(data + from * kPage, kPage, data + to * kPage); });
  }
  Table add_table(std::span<const int32_t> host, int32_t) override { return {host.data(), 0}; }
  void changed(int32_t, int64_t) override {}

 private:
  Arena arena_;
  Device& device_;
};

// A number that follows from each beginning of a text: [0, length].
std::vector<float> contents(const Tokens& tokens) {
  std::vector<float> all{1};
  for (const int32_t token : tokens) {
    const auto x = static_cast<int64_t>(all.back());
    all.push_back(static_cast<float>((x * 61 + token + 1) % 1000003));  // below 2^24: exact
  }
  return all;
}

// Tokens [begin, end) of a sequence. It goes by the tables as they are when it is launched.
class ToyStep {
 public:
  ToyStep(const KvCache& kv, int32_t slot, const Tokens& tokens, int32_t begin, int32_t end)
      : tokens_(tokens.begin(), tokens.begin() + end), begin_(begin), end_(end) {
    for (int32_t l : {0, 1}) {
      const KvLayer& layer = kv.state().layer(l);
      const int32_t* const row = layer.page_table + int64_t{slot} * layer.max_pages;
      pages_[l].assign(row, row + layer.max_pages);
      keys_[l] = layer.k;
    }
    states_ = kv.state().recurrent_layer(2);
    from_ = states_.from[slot], to_ = states_.to[slot];
  }

  void run() const {
    const std::vector<float> content = contents(tokens_);
    float* const states = states_.state.as<float>();
    float* const inputs = states_.conv.as<float>();
    ASSERT_EQ(from_ == RecurrentLayer::kNoState, begin_ == 0);
    if (begin_ > 0) {
      ASSERT_EQ(states[2 * from_ + 1], static_cast<float>(begin_));
      ASSERT_EQ(states[2 * from_], content[begin_]);
      ASSERT_EQ(inputs[from_], static_cast<float>(tokens_[begin_ - 1]));
    }
    for (int32_t l : {0, 1}) {
      for (int32_t p = l == 0 ? std::max(0, begin_ - kWindow + 1) : 0; p < begin_; ++p)
        ASSERT_EQ(key(l, p), content[p + 1] + static_cast<float>(l)) << "position " << p;
      for (int32_t p = begin_; p < end_; ++p) key(l, p) = content[p + 1] + static_cast<float>(l);
    }
    ASSERT_NE(to_, from_);
    states[2 * to_] = content[end_];
    states[2 * to_ + 1] = static_cast<float>(end_);
    inputs[to_] = static_cast<float>(tokens_[end_ - 1]);
  }

 private:
  float& key(int32_t l, int32_t position) const {
    const int32_t page = pages_[l][position / kPage];
    CHECK(page != KvLayer::kNoPage);
    return keys_[l].as<float>()[int64_t{page} * kPage + position % kPage];
  }

  Tokens tokens_;
  int32_t begin_, end_, from_, to_;
  std::vector<int32_t> pages_[2];
  Tensor keys_[2];
  RecurrentLayer states_;
};

// Computes positions up to the text's end, in steps of up to `chunk`; false where memory lacks.
bool compute(KvCache& kv, int32_t slot, const Tokens& tokens, int32_t chunk = 64,
             Device* device = nullptr) {
  while (kv.length(slot) < std::ssize(tokens)) {
    const int32_t begin = kv.length(slot);
    const int32_t left = static_cast<int32_t>(tokens.size()) - begin;
    const int32_t n = kv.cut(slot, std::min(chunk, left));
    if (!kv.reserve(slot, n)) return false;
    const ToyStep step(kv, slot, tokens, begin, begin + n);
    device == nullptr ? step.run() : device->work.push_back([=] { step.run(); });
    kv.commit(slot, n, tokens);
  }
  return true;
}

Tokens text(int32_t length, int32_t salt) {
  Tokens tokens(length);
  for (int32_t i = 0; i < length; ++i) tokens[i] = i * 7 + salt;
  return tokens;
}

// Other tokens from position `same` on.
Tokens with_end(Tokens tokens, int32_t same, int32_t salt) {
  for (int32_t i = same; i < std::ssize(tokens); ++i) tokens[i] = 10'000 * salt + i;
  return tokens;
}

// Runs a prompt in a slot of its own and ends it; returns what it found.
int32_t live(KvCache& kv, const Tokens& tokens, const std::string& salt = "", int32_t chunk = 64) {
  const int32_t slot = kv.open();
  const int32_t found = kv.adopt(slot, tokens, salt);
  CHECK(compute(kv, slot, tokens, chunk));
  kv.close(slot, tokens);
  return found;
}

TEST(StateSlots, ADroppedStepChangesNothing) {
  KvCache kv(tiny_info(), tiny_plan(20, 8));
  const int32_t s = kv.open();
  ASSERT_TRUE(compute(kv, s, text(10, 0)));
  for (int32_t n = 1; n < 20; ++n) {
    ASSERT_TRUE(kv.reserve(s, n));
    ToyStep(kv, s, with_end(text(30, 0), 10, n), 10, 10 + n).run();
    kv.commit(s, 0);
  }
  EXPECT_EQ(kv.states().pool().num_free(), 7);
  ASSERT_TRUE(compute(kv, s, text(30, 0)));
  kv.close(s);
  EXPECT_EQ(kv.states().pool().num_free(), 8);
}

TEST(StateSlots, APartOfAStepIsNotCommitted) {
  KvCache kv(tiny_info(), tiny_plan(20, 8));
  const int32_t s = kv.open();
  ASSERT_TRUE(kv.reserve(s, 5));
  EXPECT_DEATH(kv.commit(s, 3), "CHECK failed");
}

TEST(StateSlots, TwoStepsInFlightNeedTwoSlots) {
  KvCache kv(tiny_info(), tiny_plan(20, 2, 1));
  const int32_t s = kv.open();
  const Tokens tokens = text(40, 0);
  ASSERT_TRUE(compute(kv, s, text(10, 0)));
  for (int32_t at = 10; at < 30; ++at) {
    ASSERT_TRUE(kv.reserve(s, 1));
    const ToyStep step(kv, s, tokens, at, at + 1);  // as it was begun ahead
    ASSERT_TRUE(kv.reserve_ahead(s, 1));
    const ToyStep ahead(kv, s, tokens, at + 1, at + 2);
    step.run();
    ahead.run();
    kv.commit(s, 1, tokens, 1);
  }
  kv.close(s, tokens);
  EXPECT_EQ(kv.states().pool().num_free(), 2);
}

TEST(StateSlots, AStepBegunAheadIsDropped) {
  KvCache kv(tiny_info(), tiny_plan(20, 8));
  const int32_t s = kv.open();
  ASSERT_TRUE(compute(kv, s, text(10, 0)));
  ASSERT_TRUE(kv.reserve(s, 1));
  const ToyStep step(kv, s, text(12, 0), 10, 11);
  ASSERT_TRUE(kv.reserve_ahead(s, 1));
  const ToyStep ahead(kv, s, text(12, 0), 11, 12);
  step.run();
  kv.commit(s, 1, text(11, 0), 1);
  ASSERT_TRUE(kv.reserve(s, 3));  // other tokens come first
  const Tokens tokens = with_end(text(20, 0), 11, 1);
  const ToyStep other(kv, s, tokens, 11, 14);
  ahead.run();
  other.run();
  kv.commit(s, 3, tokens);
  ASSERT_TRUE(compute(kv, s, tokens));
}

TEST(StateSlots, ForksShareAStateUntilTheirSteps) {
  KvCache kv(tiny_info(), tiny_plan(20, 8));
  const int32_t a = kv.open();
  ASSERT_TRUE(compute(kv, a, text(10, 0)));
  const int32_t b = kv.fork(a);
  EXPECT_EQ(kv.states().pool().num_free(), 7);
  ASSERT_TRUE(compute(kv, b, with_end(text(20, 0), 10, 1)));
  ASSERT_TRUE(compute(kv, a, with_end(text(20, 0), 10, 2)));
  EXPECT_EQ(kv.states().pool().num_free(), 6);
}

// At every offset of a page: a hit has the pages and the state of exactly so many tokens.
TEST(StateSlots, TextsGoOnFromWhereOthersEnded) {
  for (int32_t length = 1; length < 60; ++length) {
    KvCache kv(tiny_info(), tiny_plan(60, 20));
    EXPECT_EQ(live(kv, text(length, 0)), 0);
    EXPECT_EQ(live(kv, text(length, 0)), 0);  // one token at least is to be computed
    EXPECT_EQ(live(kv, text(length + 1, 0)), length);
    EXPECT_EQ(live(kv, text(150, 0)), length + 1);
    EXPECT_EQ(live(kv, with_end(text(150, 0), length, 1)), length);
    EXPECT_EQ(live(kv, text(length + 1, 0), "salt"), 0);
  }
}

// Where two texts part there is no state; the second one leaves it there, for the third.
TEST(StateSlots, PlacesWhereTextsPartAreKeptTheSecondTime) {
  for (int32_t chunk : {1, 3, 16, 64}) {
    KvCache kv(tiny_info(), tiny_plan(200, 20));
    constexpr int32_t kSame = 37 * kPage;
    EXPECT_EQ(live(kv, text(kMaxLen, 0), "", chunk), 0);
    EXPECT_EQ(live(kv, with_end(text(180, 0), kSame + 2, 1), "", chunk), 0);
    EXPECT_EQ(live(kv, with_end(text(190, 0), kSame + 3, 2), "", chunk), kSame) << chunk;
  }
}

TEST(StateSlots, ForgetsTheLongestUnusedFirst) {
  KvCache kv(tiny_info(), tiny_plan(100, 8));
  for (int32_t i = 0; i < 8; ++i) live(kv, text(20, i));
  EXPECT_EQ(kv.states().num_kept(), 8);
  EXPECT_EQ(live(kv, text(22, 0)), 20);  // takes the slot of text 1
  EXPECT_EQ(live(kv, text(24, 1)), 0);   // of text 2
  EXPECT_EQ(live(kv, text(24, 3)), 20);
  EXPECT_EQ(live(kv, text(24, 0)), 22);
  EXPECT_EQ(live(kv, text(24, 2)), 0);
  EXPECT_EQ(kv.states().num_kept(), 8);
  EXPECT_EQ(kv.states().pool().num_free(), 8);
}

TEST(StateSlots, StatesGoWithTheirPages) {
  KvCache kv(tiny_info(), tiny_plan(12, 8));
  live(kv, text(20, 0));
  live(kv, text(48, 1));
  EXPECT_EQ(kv.states().num_kept(), 1);
  EXPECT_EQ(live(kv, text(24, 0)), 0);
}

// Thousands of random lives over little memory, of texts that often start alike, on a device that
// lags behind: whatever happens, each step finds what it should, and no slot or page is lost.
class Lives {
 public:
  explicit Lives(uint32_t seed)
      : random_(seed),
        plan_(tiny_plan(90, 2 * kSeqs + any(0, 6))),
        kv_(tiny_info(), plan_,
            std::make_unique<LatePages>(KvCache::arena_bytes(tiny_info(), plan_), device_)) {}

  void run(int num_operations) {
    for (int i = 0; i < num_operations && !::testing::Test::HasFatalFailure(); ++i) act();
    while (!running_.empty()) close(running_.begin()->first);
    device_.run_all();
    EXPECT_EQ(kv_.usage(), 0);
    EXPECT_EQ(kv_.states().pool().num_free(), plan_.state_slots);
    EXPECT_LE(kv_.states().num_kept(), plan_.state_slots);
    EXPECT_GT(num_hits_, num_operations / 100);
    EXPECT_GT(num_inside_pages_, num_operations / 200);
    EXPECT_GT(num_ahead_, num_operations / 20);
  }

 private:
  static constexpr int32_t kSeqs = 4;

  int32_t any(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }

  void act() {
    if (any(0, 4) == 0) device_.run_all();
    if (any(0, 5) == 0 || running_.empty()) return open();
    auto at = std::next(running_.begin(), any(0, static_cast<int32_t>(running_.size()) - 1));
    const int32_t slot = at->first;
    Tokens& tokens = at->second;
    const int32_t what = any(0, 11);
    const int32_t room = kMaxLen - static_cast<int32_t>(tokens.size());
    if (what <= 1 || room < 20) return close(slot);
    if (what == 2) return fork(slot);
    if (what == 3) return verify(slot, tokens);
    if (what <= 8) return decode(slot, tokens);
    for (int32_t n = any(1, 12); n > 0; --n) tokens.push_back(any(0, 1));
    if (!compute(kv_, slot, tokens, any(1, 16), &device_)) close(slot);
  }

  void launch(int32_t slot, const Tokens& tokens, int32_t begin, int32_t end) {
    const ToyStep step(kv_, slot, tokens, begin, end);
    device_.work.push_back([=] { step.run(); });
  }

  void open() {
    const int32_t slot = kv_.open();
    if (slot == KvCache::kNoSlot) return;
    Tokens tokens(any(1, 120));
    const int32_t part = any(0, 100);  // few different beginnings
    for (int32_t i = 0; i < std::ssize(tokens); ++i) tokens[i] = i < part ? i % 3 : any(0, 1);
    if (!past_.empty() && any(0, 1) == 0) {  // or the next turn of a text that has ended
      tokens = past_[any(0, static_cast<int32_t>(past_.size()) - 1)];
      tokens.resize(std::min<size_t>(tokens.size(), any(1, 160)));
      tokens.push_back(any(0, 1));
    }
    const int32_t found = kv_.adopt(slot, tokens, any(0, 3) == 0 ? "salt" : "", any(0, 9) > 0);
    ASSERT_EQ(kv_.length(slot), found);
    ASSERT_LT(found, std::ssize(tokens));
    num_hits_ += found > 0;
    num_inside_pages_ += found % kPage > 0;
    running_[slot] = tokens;
    if (!compute(kv_, slot, tokens, any(0, 1) == 0 ? any(1, 10) : 64, &device_)) close(slot);
  }

  void fork(int32_t slot) {
    const int32_t copy = kv_.fork(slot);
    if (copy != KvCache::kNoSlot) running_[copy] = running_[slot];
  }

  // Drafts that come true or do not: then what did is computed again.
  void verify(int32_t slot, Tokens& tokens) {
    const auto begin = static_cast<int32_t>(tokens.size());
    const int32_t num_drafts = any(1, 7), num_true = any(0, num_drafts);
    Tokens drafted = tokens;
    for (int32_t i = 0; i <= num_drafts; ++i) drafted.push_back(any(0, 1));
    if (!kv_.reserve(slot, 1 + num_drafts)) return;
    launch(slot, drafted, begin, begin + 1 + num_drafts);
    tokens.assign(drafted.begin(), drafted.begin() + begin + 1 + num_true);
    if (num_true == num_drafts) return kv_.commit(slot, 1 + num_drafts, tokens);
    kv_.commit(slot, 0, tokens);
    tokens.push_back(any(0, 1));
    if (!compute(kv_, slot, tokens, 64, &device_)) close(slot);
  }

  // Tokens one by one, some steps begun ahead, and some of those dropped for others.
  void decode(int32_t slot, Tokens& tokens) {
    const int32_t num_steps = any(1, 6);
    bool is_begun = false;
    for (int32_t i = 0; i < num_steps; ++i) {
      const auto begin = kv_.length(slot);
      if (!is_begun) tokens.push_back(any(0, 1));
      if (!kv_.reserve(slot, 1)) return close(slot);
      if (!is_begun) launch(slot, tokens, begin, begin + 1);
      const Tokens now = tokens;
      is_begun = i + 1 < num_steps && any(0, 4) > 0 && kv_.reserve_ahead(slot, 1);
      if (is_begun) {
        tokens.push_back(any(0, 1));
        launch(slot, tokens, begin + 1, begin + 2);
        ++num_ahead_;
      }
      kv_.commit(slot, 1, now, is_begun ? 1 : 0);
      if (!is_begun || any(0, 3) > 0) continue;
      tokens = now;  // for nothing
      if (any(0, 2) == 0) return close(slot);
      is_begun = false;
    }
  }

  void close(int32_t slot) {
    Tokens& tokens = running_[slot];
    if (any(0, 1) == 0) device_.run_all();
    past_.push_back(tokens);
    if (past_.size() > 8) past_.erase(past_.begin());
    kv_.close(slot, tokens);
    running_.erase(slot);
  }

  std::mt19937 random_;
  Device device_;
  KvPlan plan_;
  KvCache kv_;
  std::map<int32_t, Tokens> running_;  // by slot
  std::vector<Tokens> past_;
  int num_hits_ = 0;
  int num_inside_pages_ = 0;
  int num_ahead_ = 0;
};

TEST(StateSlots, RandomLivesReadTheStateOfTheirTokens) {
  for (uint32_t seed = 1; seed <= 12; ++seed) Lives(seed).run(3000);
}

}  // namespace
}  // namespace nibble
