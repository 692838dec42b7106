#include "ops/wrong_blocks.h"

#include <gtest/gtest.h>

#include "ops/matmul_ref.h"
#include "ops/test_problem.h"

namespace nibble::ops {
namespace {

// A block of 32 of 2,880 columns left out of one tile of rows, or for one token, is found; sums
// that are off by a hundredth are not taken for it.
TEST(WrongBlocks, AreFoundWhereverTheyAre) {
  constexpr int64_t kRows = 48, kCols = 2880, kTokens = 40;
  Random random(1);
  const TestWeight w(random, Format::kMxfp4, 1, kRows, kCols);
  const Floats x(random, kTokens, kCols);
  enum { kNone, kTile, kToken };
  for (const int what : {kNone, kTile, kToken}) {
    WrongBlocks blocks(kCols);
    for (int64_t n = 0; n < kRows; ++n) {
      const ref::Row row(w.view, 0, n);
      for (int64_t t = 0; t < kTokens; ++t) {
        Floats missing(1, kCols);
        std::copy_n(x.row(t), kCols, missing.values.begin());
        std::fill_n(missing.values.begin() + 640, 32, 0.f);
        const bool is_wrong = (what == kTile && n / 16 == 1) || (what == kToken && t == 7);
        const double want = row.dot(x.row(t));
        const double got = is_wrong ? row.dot(missing.row(0)) : want * (1 + 0.01 * random.normal());
        blocks.add(t, n, got, want);
      }
    }
    if (what == kNone)
      EXPECT_LT(blocks.worst(), 1);
    else
      EXPECT_GT(blocks.worst(), 1) << what;
  }
}

}  // namespace
}  // namespace nibble::ops
