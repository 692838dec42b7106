#include "engine/kv_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "engine/kv_cache.h"

namespace nibble {
namespace {

// gpt-oss in shape: half the layers see a window.
ModelInfo window_and_full(int32_t max_positions) {
  ModelInfo info;
  info.num_layers = 4;
  info.max_positions = max_positions;
  info.groups = {{.window = 32, .layers = {0, 2}, .num_kv_heads = 2, .head_dim = 8},
                 {.window = kNoWindow, .layers = {1, 3}, .num_kv_heads = 2, .head_dim = 8}};
  return info;
}

KvOptions options_of(int64_t bytes, int32_t max_len) {
  return {.page_size = 16,
          .dtype = DType::kBF16,
          .bytes = bytes,
          .max_num_seqs = 4,
          .max_step_tokens = 64,
          .max_len = max_len};
}

TEST(KvPlan, PageHoldsKAndVOfItsLayers) {
  const ModelInfo info = window_and_full(1024);
  // 2 (K, V) * 2 layers * 16 positions * 2 heads * 8 * 2 bytes
  EXPECT_EQ(page_bytes(info.groups[0], options_of(0, 0)), 2048);
}

// As those of a draft beside those of its model.
TEST(KvPlan, GroupsHaveHeadsOfTheirOwn) {
  ModelInfo info = window_and_full(1024);
  info.groups[1].num_kv_heads = 3;
  info.groups[1].head_dim = 4;
  KvPlan plan = plan_kv(info, options_of(100 * 2048, 512));
  EXPECT_EQ(page_bytes(info.groups[1], plan.options), 2048 * 12 / 16);
  EXPECT_EQ(plan.group_pages[1], 80 * 16 / 12);
  KvCache kv(info, plan);
  EXPECT_EQ(kv.state().layer(0).k.dim(1), 2);
  EXPECT_EQ(kv.state().layer(0).v.dim(3), 8);
  EXPECT_EQ(kv.state().layer(1).k.dim(1), 3);
  EXPECT_EQ(kv.state().layer(1).v.dim(3), 4);
}

TEST(KvPlan, PageTablesHaveARowPerSequenceAndGroup) {
  // 2 groups * 4 sequences * ceil(100 / 16) pages * 4 bytes
  EXPECT_EQ(KvCache::table_bytes(window_and_full(1024), options_of(0, 0), 100), 224);
}

TEST(KvPlan, WindowGroupIsBoundedAndFullGroupGetsTheRest) {
  const ModelInfo info = window_and_full(4096);
  const KvPlan plan = plan_kv(info, options_of(100 * 2048, 512));
  // Each sequence: ceil(31 / 16) + 2 pages; all chunks together: 64 / 16.
  EXPECT_EQ(plan.group_pages[0], 4 * 4 + 4);
  EXPECT_EQ(plan.group_pages[1], 80);
  EXPECT_EQ(plan.tokens, 80 * 16);
  EXPECT_EQ(plan.bytes, 100 * 2048);
  EXPECT_EQ(plan.max_len, 512);
}

TEST(KvPlan, NoMoreThanAllSequencesCanUse) {
  const ModelInfo info = window_and_full(4096);
  const KvPlan plan = plan_kv(info, options_of(int64_t{1} << 40, 128));
  EXPECT_EQ(plan.group_pages[1], 4 * 128 / 16);
  EXPECT_EQ(plan.bytes, kv_bytes_for(info, plan.options, 128, 4));
}

TEST(KvPlan, LengthFollowsFromTheMemory) {
  const ModelInfo info = window_and_full(1 << 20);
  // 20 window pages, and 300 full ones for one sequence: above the length worth having.
  EXPECT_EQ(plan_kv(info, options_of(320 * 2048 + 2047, 0)).max_len, 300 * 16);
  EXPECT_EQ(plan_kv(info, options_of(int64_t{1} << 40, 0)).max_len, 1 << 20);
}

TEST(KvPlan, WindowsShrinkBeforeALengthIsRefused) {
  const ModelInfo info = window_and_full(4096);
  // One sequence of 512: 32 full pages and 7 of the window (touched by 31 + 64 positions).
  const int64_t least = (32 + 7) * 2048;
  EXPECT_EQ(kv_bytes_for(info, options_of(0, 512), 512, 1), least);
  EXPECT_EQ(plan_kv(info, options_of(least, 512)).group_pages[0], 7);
  EXPECT_THROW(plan_kv(info, options_of(least - 1, 512)), Error);
  EXPECT_THROW(plan_kv(info, options_of(int64_t{1} << 40, 4097)), Error);
}

// Qwen3-Next-80B: 12 layers with pages, 36 with a state.
ModelInfo recurrent_and_full() {
  ModelInfo info;
  info.num_layers = 48;
  info.max_positions = 262144;
  info.groups = {{.layers = std::vector<int32_t>(12), .num_kv_heads = 2, .head_dim = 256},
                 {.layers = std::vector<int32_t>(36), .recurrent = {32, 128, 128, 8192, 4}}};
  return info;
}

TEST(KvPlan, StatesTakeTheirShareBesidePages) {
  const ModelInfo info = recurrent_and_full();
  KvOptions options = options_of(int64_t{10} << 30, 8192);
  EXPECT_EQ(slot_bytes(info, options), 79'036'416);
  KvPlan plan = plan_kv(info, options);
  EXPECT_EQ(plan.state_slots, 8);  // two of each of four sequences
  EXPECT_EQ(plan.group_pages[1], 0);
  EXPECT_EQ(plan.bytes, 8 * 79'036'416 + plan.group_pages[0] * page_bytes(info.groups[0], options));

  options.prefix_cache = true;
  options.max_num_seqs = 64;
  const int64_t slot = 79'036'416 + page_bytes(info.groups[0], options);
  EXPECT_EQ(slot_bytes(info, options), slot);
  options.bytes += 128 * slot;
  plan = plan_kv(info, options);
  EXPECT_NEAR(static_cast<double>(plan.state_slots), 128 + plan.tokens / 4096.0, 1);
  EXPECT_GT(plan.tokens, 200'000);
  EXPECT_LE(plan.bytes, options.bytes);
  EXPECT_GT(plan.bytes, options.bytes - 2 * slot);
  const int64_t arena = KvCache::arena_bytes(info, plan);
  EXPECT_GE(arena, plan.bytes);
  EXPECT_LE(arena, plan.bytes + 48 * 2 * Arena::kAlign);  // each array begins on a line of its own
}

TEST(KvPlan, EachSequenceMayLeaveAState) {
  KvOptions options = options_of(int64_t{1} << 40, 1024);
  options.prefix_cache = true;
  EXPECT_EQ(plan_kv(recurrent_and_full(), options).state_slots, 8 + 4);
}

TEST(KvPlan, FewerSequencesAtOnceWhereStatesLackRoom) {
  const ModelInfo info = recurrent_and_full();
  KvOptions options = options_of(0, 8192);
  const int64_t slot = slot_bytes(info, options);
  options.bytes = kv_bytes_for(info, options, 8192, 1) + 5 * slot;
  const KvPlan plan = plan_kv(info, options);
  EXPECT_EQ(plan.options.max_num_seqs, 3);
  EXPECT_EQ(plan.state_slots, 6);
  EXPECT_GE(plan.tokens, 8192);

  const auto refusal = [&](int64_t bytes, int32_t max_len) -> std::string {
    options.bytes = bytes;
    options.max_len = max_len;
    try {
      plan_kv(info, options);
      return "";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kMemory);
      return e.what();
    }
  };
  EXPECT_EQ(refusal(2 * slot + (100 << 20), 0), "");
  EXPECT_THAT(refusal(2 * slot + (100 << 20), 8192),
              ::testing::HasSubstr("158072832 of them for the states of recurrent layers"));
  EXPECT_THAT(refusal(2 * slot + (100 << 20), 8192), ::testing::HasSubstr("lower --max-model-len"));
  EXPECT_THAT(refusal(slot, 0), ::testing::HasSubstr("no other setting makes the states smaller"));
}

TEST(KvPlan, RefusalSaysWhatIsNeeded) {
  try {
    plan_kv(window_and_full(4096), options_of(1000, 512));
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kMemory);
    EXPECT_THAT(e.what(), ::testing::HasSubstr("79872 bytes"));
    EXPECT_THAT(e.what(), ::testing::HasSubstr("--max-model-len"));
  }
}

// The bound that window groups are sized by holds: whatever chunks the sequences take, together no
// more than max_step_tokens a step, a page is always there.
TEST(KvPlan, WindowPagesNeverRunOut) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const auto any = [&](int32_t low, int32_t high) {
      return std::uniform_int_distribution<int32_t>(low, high)(random);
    };
    ModelInfo info = window_and_full(2048);
    for (LayerGroup& group : info.groups) group.num_kv_heads = group.head_dim = 1;
    info.groups[0].window = any(1, 70);
    KvOptions options = options_of(int64_t{1} << 40, 2048);
    options.page_size = any(1, 20);
    options.max_num_seqs = any(1, 6);
    options.max_step_tokens = any(options.max_num_seqs, 100);
    KvCache kv(info, plan_kv(info, options));
    for (int32_t s = 0; s < options.max_num_seqs; ++s) kv.open();
    for (int step = 0; step < 100; ++step) {
      int32_t budget = options.max_step_tokens;
      std::vector<int32_t> taken(options.max_num_seqs);
      for (int32_t s = 0; s < options.max_num_seqs; ++s) {
        if (kv.length(s) + budget > 2048) kv.rollback(s, kv.length(s));
        taken[s] = any(0, 3) == 0 ? any(0, budget) : std::min(budget, any(0, 3));
        budget -= taken[s];
        ASSERT_TRUE(kv.reserve(s, taken[s])) << "round " << round << ", step " << step;
      }
      for (int32_t s = 0; s < options.max_num_seqs; ++s) kv.commit(s, taken[s]);
    }
  }
}

}  // namespace
}  // namespace nibble
