#include "cli/routing_balance.h"

#include <gtest/gtest.h>

namespace nibble::cli {
namespace {

TEST(RoutingBalance, EvenIsOneAndASingleExpertIsOneOverE) {
  std::vector<int32_t> even = {0, 1, 2, 3, 3, 2, 1, 0}, one = {2, 2, 2, 2, 2, 2, 2, 2};
  RoutingBalance balance;
  balance.observe("ids", 0, make_tensor(even.data(), DType::kI32, {4, 2}));
  balance.observe("p", 0, make_tensor(one.data(), DType::kI32, {4, 2}));  // not ids: not counted
  EXPECT_DOUBLE_EQ(balance.report(4).mean, 1.0);
  EXPECT_EQ(balance.report(4).choices, 8);
  balance.observe("ids", 1, make_tensor(one.data(), DType::kI32, {4, 2}));
  EXPECT_DOUBLE_EQ(balance.report(4).mean, (1.0 + 0.25) / 2);
  EXPECT_DOUBLE_EQ(balance.report(4).worst_layer, 0.25);
}

TEST(RoutingBalance, ExpertsThatNobodyChoseCount) {
  std::vector<int32_t> ids = {0, 1, 0, 1};
  RoutingBalance balance;
  balance.observe("ids", 0, make_tensor(ids.data(), DType::kI32, {4, 1}));
  EXPECT_DOUBLE_EQ(balance.report(8).mean, 0.25);
}

// A shared expert, the last, is every token's.
TEST(RoutingBalance, WhatNobodyChoosesDoesNotCount) {
  std::vector<int32_t> ids = {0, 4, 1, 4, 2, 4, 3, 4};
  RoutingBalance balance;
  balance.observe("ids", 0, make_tensor(ids.data(), DType::kI32, {4, 2}));
  EXPECT_DOUBLE_EQ(balance.report(4).mean, 1.0);
  EXPECT_EQ(balance.report(4).choices, 4);
}

}  // namespace
}  // namespace nibble::cli
