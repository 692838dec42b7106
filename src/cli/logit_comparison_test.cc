#include "cli/logit_comparison.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nibble::cli {
namespace {

TEST(LogitComparison, KlOfTwoSmallDistributions) {
  // p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4); logits may be off by any constant.
  const float p[] = {7 + std::log(.5f), 7 + std::log(.25f), 7 + std::log(.25f)};
  const float q[] = {std::log(.25f) - 3, std::log(.5f) - 3, std::log(.25f) - 3};
  const PositionComparison c = compare_logits(p, q, 2);
  // Logits are float32 of size 8: off by 2^-22 or so each.
  EXPECT_NEAR(c.kl, .25 * std::log(2), 2e-6);
  EXPECT_NEAR(c.reference, std::log(.25), 2e-6);
  EXPECT_NEAR(c.candidate, std::log(.25), 2e-6);
  EXPECT_FALSE(c.same_top);
  const PositionComparison same = compare_logits(p, p, 0);
  EXPECT_EQ(same.kl, 0);
  EXPECT_EQ(same.reference, same.candidate);
  EXPECT_TRUE(same.same_top);
}

TEST(LogitComparison, SurvivesLogitsThatExpCannot) {
  const float p[] = {1000, 0, -1000}, q[] = {0, 1000, -1000};
  const PositionComparison c = compare_logits(p, q, 0);
  EXPECT_EQ(c.kl, 1000);  // p is sure of id 0, to which q gives e^-1000
  EXPECT_EQ(c.reference, 0);
  EXPECT_EQ(c.candidate, -1000);
}

TEST(LogitComparison, SummarizesPositions) {
  std::vector<PositionComparison> positions;
  for (int i = 0; i < 200; ++i)
    positions.push_back({.kl = (i * 7) % 200 / 100.0,
                         .reference = -1,
                         .candidate = i % 2 == 0 ? -1.5 : -1,
                         .same_top = i % 4 != 0});
  const ComparisonSummary s = summarize(positions);
  EXPECT_EQ(s.positions, 200);
  EXPECT_NEAR(s.reference_nll, 1, 1e-12);
  EXPECT_NEAR(s.candidate_nll, 1.25, 1e-12);
  EXPECT_NEAR(s.nll_difference_error, std::sqrt(.0625 / 199), 1e-12);
  EXPECT_NEAR(s.kl_mean, .995, 1e-12);
  EXPECT_EQ(s.kl_median, .99);
  EXPECT_EQ(s.kl_99, 1.97);
  EXPECT_EQ(s.kl_max, 1.99);
  EXPECT_NEAR(s.top1_agreement, .75, 1e-12);
}

}  // namespace
}  // namespace nibble::cli
