#include "cli/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace nibble::cli {
namespace {

TEST(VisibleDevices, EachRankHasItsOwnFirst) {
  EXPECT_EQ(visible_devices(nullptr, 0, 2), "0,1");
  EXPECT_EQ(visible_devices(nullptr, 1, 2), "1,0");
  EXPECT_EQ(visible_devices(nullptr, 2, 4), "2,0,1,3");
  EXPECT_EQ(visible_devices("5,3,7", 1, 2), "3,5,7");
  EXPECT_EQ(visible_devices("GPU-a,GPU-b", 1, 2), "GPU-b,GPU-a");
}

TEST(VisibleDevices, TooFewAreRefused) {
  for (const char* now : {"", "4"}) try {
      visible_devices(now, 1, 2);
      ADD_FAILURE() << now;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kUsage);
      EXPECT_THAT(e.what(), testing::HasSubstr("for 2 ranks of this host"));
    }
}

}  // namespace
}  // namespace nibble::cli
