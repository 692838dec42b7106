#include "engine/recently_used.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

namespace nibble {
namespace {

TEST(RecentlyUsed, TheLongestUnusedGoes) {
  RecentlyUsed<int, int> values(3);
  for (const int key : {1, 2, 3}) values.use(key) = 10 * key;
  EXPECT_EQ(values.use(1), 10);
  values.use(4) = 40;  // 2 goes
  EXPECT_EQ(values.size(), 3u);
  EXPECT_FALSE(values.has(2));
  EXPECT_TRUE(values.has(1));  // which is no use of it
  EXPECT_EQ(values.use(1), 10);
  EXPECT_EQ(values.use(3), 30);
  EXPECT_EQ(values.use(4), 40);
  EXPECT_EQ(values.use(2), 0);  // anew; 1 goes
  EXPECT_EQ(values.use(3), 30);
  EXPECT_EQ(values.use(1), 0);
  values.clear();
  EXPECT_EQ(values.size(), 0u);
  EXPECT_EQ(values.use(3), 0);
}

// What goes is destroyed, what stays does not move.
TEST(RecentlyUsed, HoldsNoMoreThanItMay) {
  RecentlyUsed<int, std::shared_ptr<int>> values(5);
  std::vector<std::weak_ptr<int>> made;
  const std::shared_ptr<int>& first = values.use(0) = std::make_shared<int>(7);
  for (int key = 1; key < 100; ++key) {
    made.push_back(values.use(key) = std::make_shared<int>(key));
    ASSERT_EQ(&values.use(0), &first);
    const auto alive = std::ranges::count_if(made, [](const auto& v) { return !v.expired(); });
    ASSERT_EQ(alive, std::min(key, 4));
  }
  EXPECT_EQ(*first, 7);
}

// Against a list of all keys by when they were used last.
TEST(RecentlyUsed, AnyOrder) {
  std::mt19937 random(3);
  for (const size_t most : {size_t{1}, size_t{2}, size_t{7}}) {
    RecentlyUsed<int, int> values(most);
    std::vector<int> keys;  // the last used first
    for (int i = 1; i < 5000; ++i) {
      const int key = static_cast<int>(random() % 11);
      const bool is_there = std::ranges::find(keys, key) != keys.end();
      int& value = values.use(key);
      ASSERT_EQ(value != 0, is_there) << i;
      value = key + 1;
      std::erase(keys, key);
      keys.insert(keys.begin(), key);
      if (keys.size() > most) keys.pop_back();
      ASSERT_EQ(values.size(), keys.size());
    }
  }
}

}  // namespace
}  // namespace nibble
