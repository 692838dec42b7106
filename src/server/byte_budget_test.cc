#include "server/byte_budget.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace nibble::server {
namespace {

TEST(ByteBudget, GivesWhatIsLeftAndTakesItBack) {
  const auto budget = std::make_shared<ByteBudget>(100);
  {
    ByteShare a(budget, 0), b(budget, 0);
    EXPECT_TRUE(a.resize(70));
    EXPECT_FALSE(b.resize(31));
    EXPECT_EQ(b.bytes(), 0u);
    EXPECT_TRUE(b.resize(30));
    EXPECT_FALSE(a.resize(71));
    EXPECT_EQ(a.bytes(), 70u);
    EXPECT_TRUE(a.resize(40));
    EXPECT_TRUE(b.resize(60));
    ByteShare moved = std::move(b);
    EXPECT_EQ(budget->held(), 100u);
    a = std::move(moved);  // what a held goes when `moved` does
    EXPECT_EQ(a.bytes(), 60u);
  }
  EXPECT_EQ(budget->held(), 0u);
  ByteShare all(budget, 0);
  EXPECT_FALSE(all.resize(~size_t{0}));
}

TEST(ByteBudget, TheFirstBytesOfAShareAreFree) {
  const auto budget = std::make_shared<ByteBudget>(10);
  ByteShare a(budget, 5), b(budget, 5);
  EXPECT_TRUE(a.resize(15));
  EXPECT_EQ(budget->held(), 10u);
  EXPECT_TRUE(b.resize(5));
  EXPECT_FALSE(b.resize(6));
  EXPECT_TRUE(a.resize(14));
  EXPECT_TRUE(b.resize(6));
  a.clear();
  b.clear();
  EXPECT_EQ(budget->held(), 0u);
}

TEST(ByteBudget, NeverGivesMoreThanItHas) {
  const auto budget = std::make_shared<ByteBudget>(1'000);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      ByteShare share(budget, 0);
      for (size_t n = 0; n < 10'000; ++n) {
        (void)share.resize(n * 7919 % 600);
        EXPECT_LE(budget->held(), 1'000u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget->held(), 0u);
}

}  // namespace
}  // namespace nibble::server
