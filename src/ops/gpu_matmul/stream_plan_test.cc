#include "ops/gpu_matmul/stream_plan.h"

#include <gtest/gtest.h>

namespace nibble::ops::gpu {
namespace {

constexpr int kSms = 132;

// Every row has a block, and blocks that meet run at once.
void expect_sound(const StreamPlan& plan, int64_t rows, int num_sms) {
  const int64_t tiles = (rows + plan.of_block - 1) / plan.of_block;
  EXPECT_EQ(plan.blocks, tiles * plan.shares);
  EXPECT_LE(plan.of_block, kStreamMostRows);
  if (plan.shares == 1) return;
  EXPECT_LE(plan.blocks, num_sms);
  EXPECT_EQ(plan.of_block % 64, 0);
  // A warpgroup's sums of all its 64 rows have room.
  EXPECT_LE(tiles * plan.of_block * plan.shares * 16, stream_parts(rows, 1));
}

TEST(StreamPlan, IsSoundForAnyShape) {
  for (const int sms : {1, 7, 78, 114, kSms})
    for (int64_t rows = 16; rows <= 40000; rows += rows < 700 ? 16 : 976)
      for (const int64_t cols : {64, 192, 256, 1024, 4096, 14336}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << cols << " on " << sms);
        if (cols % 256 == 0) expect_sound(plan_unit_stream(rows, cols, sms), rows, sms);
        for (const int width : {16, 32, 64})
          expect_sound(plan_rows_stream(rows, cols, width, sms), rows, sms);
      }
}

// Those of Llama-3.1-8B and Qwen3-8B: 128 SMs of 132 at least have a block of nearly the same size.
TEST(StreamPlan, FillsAGpuWithTheMatricesOf8B) {
  constexpr struct {
    int64_t rows, cols;
  } kMatrices[] = {{4096, 4096}, {4096, 14336}, {4096, 12288}, {28672, 4096}, {24576, 4096}};
  for (const auto& [rows, cols] : kMatrices)
    for (const int width : {16, 64}) {
      const StreamPlan plan = plan_rows_stream(rows, cols, width, kSms);
      EXPECT_GE(plan.blocks, 128) << rows << " x " << cols;
      EXPECT_LE(plan.of_block * plan.blocks, 1.03 * rows * plan.shares) << rows << " x " << cols;
    }
  for (const int64_t cols : {4096, 12288, 14336}) {
    const StreamPlan plan = plan_unit_stream(4096, cols, kSms);
    EXPECT_GE(plan.blocks, 128);
    EXPECT_GT(plan.shares, 1);
  }
}

}  // namespace
}  // namespace nibble::ops::gpu
