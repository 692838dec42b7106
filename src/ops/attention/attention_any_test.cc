#include "ops/attention/attention_any.h"

#include <gtest/gtest.h>

namespace nibble::ops::gpu {
namespace {

TEST(KeySplits, FollowOneAnother) {
  EXPECT_EQ(KeySplits::begin(0), 0);
  for (int32_t split = 0; split < KeySplits::kMost; ++split) {
    const int32_t begin = KeySplits::begin(split), end = KeySplits::begin(split + 1);
    ASSERT_LT(begin, end);
    EXPECT_EQ(begin % 64, 0);  // of a block of keys
    for (const int32_t key : {begin, begin + (end - begin) / 2, end - 1})
      EXPECT_EQ(KeySplits::of(key), split) << key;
  }
  EXPECT_EQ(KeySplits::of(131071), 29);
}

}  // namespace
}  // namespace nibble::ops::gpu
