#include "ops/gpu_matmul/unit_f16.h"

#include <gtest/gtest.h>

namespace nibble::ops::gpu {
namespace {

// Every unit of K is some warp's own, blocks have every row tile, and what lies in shared memory
// leaves room for the next kernel's block.
TEST(UnitF16, SharesOutEveryShape) {
  const cuda::Caps h200 = cuda::h200();
  for (const int64_t rows : {16, 48, 512, 4096, 6144, 24576, 28672, 151936})
    for (const int64_t cols : {64, 256, 320, 2048, 2304, 4096, 5120, 12288, 14336, 16384}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << cols);
      const auto plan = plan_unit_f16(rows, cols, h200);
      ASSERT_TRUE(plan);
      const UnitF16& m = *plan;
      EXPECT_GE(m.num_parts * m.part_units, m.num_units);
      EXPECT_LT((m.num_parts - 1) * m.part_units, m.num_units);
      EXPECT_LE(m.part_units, m.num_units);
      EXPECT_LE(m.slice_parts, kF16Warps);
      EXPECT_GT(m.num_parts, (m.slices - 1) * m.slice_parts);
      EXPECT_LE(m.num_parts, m.slices * m.slice_parts);
      EXPECT_EQ(m.each * m.groups + m.more, rows / 16);
      EXPECT_LE(m.groups * m.slices, h200.num_sms);
      EXPECT_LE(m.end + 2048, h200.smem_per_block_bytes / 2);
    }
}

TEST(UnitF16, KnowsTheShapesItIsFor) {
  const cuda::Caps h200 = cuda::h200();
  const auto up = *plan_unit_f16(24576, 4096, h200);
  EXPECT_EQ(up.slices, 1);
  EXPECT_EQ(up.part_units, 4);
  EXPECT_EQ(up.tiles(), 12);
  const auto down = *plan_unit_f16(4096, 12288, h200);
  EXPECT_EQ(down.slices, 3);
  EXPECT_EQ(down.part_units, 4);
  EXPECT_EQ(down.tiles(), 6);
  const auto llama = *plan_unit_f16(4096, 14336, h200);
  EXPECT_EQ(llama.slices, 4);
  EXPECT_EQ(llama.part_units, 4);
  EXPECT_EQ(llama.slice_parts, 14);
  EXPECT_EQ(llama.tiles(), 8);
  EXPECT_FALSE(plan_unit_f16(4096, 64 * 4 * 16 * 9, h200));
}

}  // namespace
}  // namespace nibble::ops::gpu
