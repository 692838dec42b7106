#include "ops/general_rows.h"

#include <gtest/gtest.h>

#include "ops/refuse.h"

namespace nibble::ops {
namespace {

TEST(GeneralRows, AreSaidWithTheNearestBetterRow) {
  const Refusal cpu{"avx2_float", kRunsOnCpus}, wide{"cuda_w4a16_decode", "more than 4608 columns"};
  const Refusal few{"sm90_w4a16_gemm", "too few tokens to fill its tiles"};
  const std::vector<PlanEntry> entries = {
      {{Op::kEmbed, -1}, 1, 512, "cuda_any", {cpu, {"cuda_bf16", "needs a bf16 table"}}},
      {{Op::kMoeUp, 0}, 1, 16, "cuda_any", {few, wide, cpu}},
      {{Op::kMoeUp, 0}, 17, 512, "cuda_any", {wide, cpu}},
      {{Op::kMoeUp, 1}, 1, 512, "cuda_any", {wide, cpu}},
      {{Op::kOutputGate, 1}, 1, 512, "cuda_any", {cpu}},
      {{Op::kMoeDown, 0}, 1, 512, "cuda_w4a16_decode", {cpu}}};
  EXPECT_EQ(say_general_rows(entries),
            (std::vector<std::string>{
                "embed by cuda_any, which takes any shape; cuda_bf16: needs a bf16 table",
                "moe_up of 2 layers by cuda_any, which takes any shape; cuda_w4a16_decode: more "
                "than 4608 columns"}));
  EXPECT_TRUE(say_general_rows({}).empty());
}

TEST(GeneralRows, AreNotSaidWithRowsOfOtherMachines) {
  const Refusal wide{"avx2_mxfp8", "weights are not mxfp8"},
      arm{"neon_float", "needs an arm64 CPU"};
  const Refusal amx{"amx_int8row", "needs AMX (tile, int8, bf16)"};
  const Refusal wgmma{"sm90_w4a16_gemm", "needs wgmma: a Hopper GPU"};
  const std::vector<PlanEntry> entries = {
      {{Op::kOutProj, 0}, 1, 512, "avx2_any", {amx, wide, wgmma, arm}},
      {{Op::kNormUnembed, -1}, 1, 512, "plain_any", {amx, arm}}};
  EXPECT_EQ(say_general_rows(entries),
            (std::vector<std::string>{
                "out_proj of 1 layer by avx2_any, which takes any shape; avx2_mxfp8: weights are "
                "not mxfp8",
                "norm_unembed by plain_any, which takes any shape; the better ones are for other "
                "machines"}));
}

}  // namespace
}  // namespace nibble::ops
