#include "cli/progress_bar.h"

#include <gtest/gtest.h>

namespace nibble::cli {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(ProgressBar, LineFillsUpAndNamesSizeAndSpeed) {
  EXPECT_EQ(ProgressBar::line("loading", 0, kGiB, 0, 0),
            "loading [..............................]   0% of 1.00 GiB");
  EXPECT_EQ(ProgressBar::line("loading", kGiB / 2, kGiB, 0.25, kGiB / 2),
            "loading [###############...............]  50% of 1.00 GiB, 0.2 s, 2.15 GB/s");
  EXPECT_EQ(ProgressBar::line("x", 0, 0, 0, 0),
            "x [##############################] 100% of 0.0 KiB");
  // Half of it was there before; 4 MB came.
  EXPECT_EQ(ProgressBar::line("x", kGiB / 2, kGiB, 2, 4'000'000),
            "x [###############...............]  50% of 1.00 GiB, 2.0 s, 2.0 MB/s");
}

TEST(ProgressBar, LineFitsTheTerminal) {
  const std::string title = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16";
  for (size_t columns = 1; columns < 130; ++columns) {
    const std::string line = ProgressBar::line(title, kGiB, 60 * kGiB, 1234.5, kGiB, columns);
    EXPECT_LE(line.size(), columns);
    if (columns >= 40) {
      EXPECT_NE(line.find("  1% of 60.00 GiB, 1234.5 s, 0.9 MB/s"), line.npos) << columns;
    }
    EXPECT_EQ(line.find(title) == 0, columns >= title.size() + 38) << columns;
  }
  EXPECT_EQ(ProgressBar::line("openai/gpt-oss-20b", kGiB, 2 * kGiB, 100, kGiB, 79),
            "openai/gpt-oss-20b [##########...........]  50% of 2.00 GiB, 100.0 s, 10.7 MB/s");
}

}  // namespace
}  // namespace nibble::cli
