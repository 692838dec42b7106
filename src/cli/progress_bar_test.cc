#include "cli/progress_bar.h"

#include <gtest/gtest.h>

namespace nibble::cli {
namespace {

TEST(ProgressBar, LineFillsUpAndNamesSizeAndSpeed) {
  EXPECT_EQ(ProgressBar::line("loading", 0, int64_t{1} << 30, 0),
            "loading [..............................]   0% of 1.00 GiB");
  EXPECT_EQ(ProgressBar::line("loading", int64_t{1} << 29, int64_t{1} << 30, 2),
            "loading [###############...............]  50% of 1.00 GiB, 2.0 s, 0.27 GB/s");
  EXPECT_EQ(ProgressBar::line("x", 0, 0, 0), "x [##############################] 100% of 0.0 KiB");
}

}  // namespace
}  // namespace nibble::cli
