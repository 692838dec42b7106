#include "ops/gpu_matmul/unit_one.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "ops/routing.h"

namespace nibble::ops::gpu {
namespace {

// Qwen3-8B, Qwen3-30B-A3B, Llama-3.1-8B, Qwen3-Next-80B and Nemotron-3-Nano, then odd ones.
const UnitOneShape kShapes[] = {
    {OneWork::kDense, 6144, 4096, 1},     {OneWork::kDense, 6144, 4096, 1, /*has_norm=*/true},
    {OneWork::kDense, 4096, 4096, 1},     {OneWork::kDense, 24576, 4096, 1, /*has_norm=*/true},
    {OneWork::kDense, 4096, 12288, 1},    {OneWork::kDense, 4096, 14336, 1},
    {OneWork::kDense, 151936, 4096, 1},   {OneWork::kDense, 5120, 2048, 1, /*has_norm=*/true},
    {OneWork::kChosen, 1536, 2048, 8},    {OneWork::kSum, 2048, 768, 8},
    {OneWork::kChosen, 1024, 2048, 10},   {OneWork::kSum, 2048, 512, 10},
    {OneWork::kChosen, 1856, 2688, 8},    {OneWork::kSum, 2688, 1856, 8},
    {OneWork::kSum, 2688, 1856, 6},       {OneWork::kDense, 10304, 2688, 1, /*has_norm=*/true},
    {OneWork::kDense, 64, 64 * 67, 1},    {OneWork::kDense, 64, 64 * 61, 1, /*has_norm=*/true},
    {OneWork::kDense, 16, 64, 1},         {OneWork::kChosen, 32, 192, 3},
    {OneWork::kChosen, 64, 128, 16},      {OneWork::kSum, 320, 192, 16},
    {OneWork::kSum, 16, 64 * 11, 1},      {OneWork::kSum, 2880, 2880, 7},
    {OneWork::kChosen, 5760, 64 * 45, 5}, {OneWork::kDense, 4096, 64 * 80, 1}};

std::vector<UnitOneShape> all_shapes() {
  std::vector<UnitOneShape> all(std::begin(kShapes), std::end(kShapes));
  for (const UnitOneShape& s : kShapes)
    for (int tokens = 2; tokens <= kMostLeft && s.work != OneWork::kDense; ++tokens) {
      all.push_back(s);
      all.back().tokens = tokens;
    }
  return all;
}

// Every unit of every row tile is one warp's, the products by inverses are the divisions, and what
// a block needs fits.
TEST(UnitOne, SharesOutAllUnits) {
  for (const UnitOneShape& s : all_shapes())
    for (const cuda::Caps& gpu : {cuda::h200(), cuda::gb10()}) {
      SCOPED_TRACE(testing::Message() << s.rows << " x " << s.cols << ", top_k " << s.top_k
                                      << ", tokens " << s.tokens << ", sm " << gpu.sm);
      const auto m = plan_unit_one(s, gpu);
      if (!m) {
        EXPECT_TRUE(gpu.sm != 90 || s.tokens > 4) << "fits a Hopper";
        continue;
      }
      const int warps = gpu.sm == 90 ? 16 : 8;
      // A part that begins inside the one before is the last.
      EXPECT_LT((m->parts - 1) * m->part_units, s.cols / 64);
      EXPECT_GE(m->parts * m->part_units, s.cols / 64);
      EXPECT_GE(s.cols / 64, m->part_units);
      EXPECT_EQ(m->vectors * m->chunk_units, m->part_units);
      EXPECT_GE(m->teams, 1);
      EXPECT_LE(m->teams * m->parts, warps);
      const int tiles = static_cast<int>(s.rows / 16) * (s.work == OneWork::kChosen ? s.top_k : 1);
      EXPECT_EQ(m->grid * m->each + m->more, tiles);
      EXPECT_LE(m->grid * s.tokens, gpu.num_sms);
      EXPECT_LT(m->more, m->grid);
      EXPECT_EQ(m->slices, m->parts * m->vectors * (s.work == OneWork::kSum ? s.top_k : 1));
      for (int warp = 0; warp < warps; ++warp)
        EXPECT_EQ(warp * m->inverse_parts >> 16, warp / m->parts);
      if (s.work == OneWork::kChosen) {
        for (int tile = 0; tile < tiles; ++tile)
          ASSERT_EQ(uint64_t{m->inverse_tiles} * tile >> 32, tile / (s.rows / 16));
      }
      EXPECT_LE(m->end, gpu.smem_per_block_bytes);
      EXPECT_LE(m->part_units, s.has_norm ? 4 : kOneMostUnits);
    }
}

// So that the weights of the second half of few tokens' experts come while the first is at work:
// Qwen3-Next-80B, Qwen3-30B-A3B. But where the first half's blocks leave SMs empty two of the
// second do not share one. (What gemv.cuh makes a block take at least; a block's own besides.)
TEST(UnitOne, BothHalvesOfExpertsLieOnOneSm) {
  constexpr uint32_t kAtLeast = 116 * 1024, kOwn = 2816, kSm = 228 * 1024;
  for (const auto& [width, top_k] : {std::pair{512, 11}, {768, 8}})
    for (int tokens = 1; tokens <= kMostLeft; ++tokens) {
      SCOPED_TRACE(testing::Message() << width << ", " << tokens << " tokens");
      const auto plan = [&](OneWork work, int64_t rows, int64_t cols) {
        const UnitOneShape shape{work,
                                 rows,
                                 cols,
                                 top_k,
                                 /*has_norm=*/false,
                                 tokens,
                                 /*has_bias=*/false};
        return plan_unit_one(shape, cuda::h200());
      };
      const auto up = plan(OneWork::kChosen, 2 * width, 2048);
      const auto down = plan(OneWork::kSum, 2048, width);
      ASSERT_TRUE(up && down);
      if (up->grid * tokens == cuda::h200().num_sms)
        EXPECT_LE(std::max(up->end, kAtLeast) + down->end + 2 * kOwn, kSm);
      else
        EXPECT_GT(2 * (down->end + kOwn), kSm);
      // No team lacks a choice.
      EXPECT_LE(down->teams, top_k);
    }
}

// The digits of a part of K of each choice, or of each warp, have a place of their own.
TEST(UnitOne, DigitsLieApart) {
  for (const UnitOneShape& s : all_shapes())
    for (const cuda::Caps& gpu : {cuda::h200(), cuda::gb10()}) {
      const auto m = plan_unit_one(s, gpu);
      if (!m) continue;
      SCOPED_TRACE(testing::Message() << s.rows << " x " << s.cols << ", top_k " << s.top_k);
      const bool is_sum = s.work == OneWork::kSum;
      const uint32_t places = is_sum ? m->choices * m->parts : gpu.sm == 90 ? 16 : 8;
      EXPECT_LE(m->digits + places * m->digits_of_part, m->scales);
      EXPECT_LE(m->scales + (m->each + (m->more > 0)) * m->choices * 64u, m->biases);
      EXPECT_LE(m->biases, m->sums);
    }
}

TEST(UnitOne, RefusesMoreThanItsWarpsShare) {
  EXPECT_FALSE(plan_unit_one({OneWork::kDense, 64, 64 * 257, 1}, cuda::h200()));
  EXPECT_FALSE(plan_unit_one({OneWork::kDense, 64, 64 * 80, 1, /*has_norm=*/true}, cuda::h200()));
  EXPECT_FALSE(plan_unit_one({OneWork::kChosen, 16, 64, 8}, cuda::h200()));
  EXPECT_FALSE(plan_unit_one({OneWork::kDense, 1 << 20, 4096, 1}, cuda::gb10()));
}

}  // namespace
}  // namespace nibble::ops::gpu
