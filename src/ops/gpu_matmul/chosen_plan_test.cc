#include "ops/gpu_matmul/chosen_plan.h"

#include <gtest/gtest.h>

namespace nibble::ops::gpu {
namespace {

constexpr int kSms = 132;  // an H200's

// gpt-oss-120b: moe_up has 360 row tiles of an expert, moe_down 180.
TEST(ChosenPlan, BlocksOfUpToEightTokensRunAtOnce) {
  for (const bool is_sum : {false, true})
    for (int tokens = 1; tokens <= 8; ++tokens) {
      const ChosenShape shape{is_sum, is_sum ? 180 : 360, 4, tokens};
      const ChosenPlan plan = plan_chosen(shape, kSms);
      EXPECT_TRUE(plan.fits(shape, kSms)) << is_sum << " " << tokens;
      EXPECT_EQ(plan.of_sm, tokens < 4 ? 1 : 2);
    }
  EXPECT_EQ(plan_chosen({false, 360, 4, 1}, kSms).blocks, kSms);
  EXPECT_EQ(plan_chosen({true, 180, 4, 1}, kSms).blocks, kSms / 2);
}

TEST(ChosenPlan, NoBlockHasMoreRowTilesThanItKeeps) {
  int more = 0;
  for (const bool is_sum : {false, true})
    for (const int row_tiles : {1, 3, 64, 180, 1000, 4000})
      for (int top_k = 1; top_k <= 8; ++top_k)
        for (int tokens = 1; tokens <= 8; ++tokens)
          for (const int sms : {1, 20, kSms}) {
            const ChosenShape shape{is_sum, row_tiles, top_k, tokens};
            const ChosenPlan plan = plan_chosen(shape, sms);
            EXPECT_LE(plan.items, tokens == 1 ? kMostOfOne : kMaxItems);
            EXPECT_GE(plan.blocks * plan.items,
                      is_sum ? row_tiles * ((top_k + 1) / 2) : row_tiles * top_k);
            more += !plan.fits(shape, sms);
          }
  EXPECT_GT(more, 100);
}

}  // namespace
}  // namespace nibble::ops::gpu
