#include "ops/general_rows.h"

#include <gtest/gtest.h>

#include "ops/refuse.h"

namespace nibble::ops {
namespace {

TEST(GeneralRows, AreSaidWithWhatRefused) {
  const Refusal cpu{"avx2_float", kRunsOnCpus}, wide{"cuda_w4a16_decode", "more than 4608 columns"};
  const Refusal few{"sm90_w4a16_gemm", "too few tokens to fill its tiles"};
  const std::vector<PlanEntry> entries = {
      {{Op::kEmbed, -1}, 1, 512, "cuda_any", {cpu, {"cuda_bf16", "needs a bf16 table"}}},
      {{Op::kMoeUp, 0}, 1, 16, "cuda_any", {cpu, few, wide}},
      {{Op::kMoeUp, 0}, 17, 512, "cuda_any", {cpu, wide}},
      {{Op::kMoeUp, 1}, 1, 512, "cuda_any", {cpu, wide}},
      {{Op::kMoeDown, 0}, 1, 512, "cuda_w4a16_decode", {cpu}}};
  EXPECT_EQ(say_general_rows(entries),
            (std::vector<std::string>{
                "embed by cuda_any, which takes any shape; cuda_bf16: needs a bf16 table",
                "moe_up of 2 layers by cuda_any, which takes any shape; sm90_w4a16_gemm: too few "
                "tokens to fill its tiles; cuda_w4a16_decode: more than 4608 columns"}));
  EXPECT_TRUE(say_general_rows({}).empty());
}

}  // namespace
}  // namespace nibble::ops
