#include "ops/matmul_ref.h"

#include <gtest/gtest.h>

#include "ops/test_problem.h"

namespace nibble::ops::ref {
namespace {

void check(Format format, Layout layout) {
  Random random(3);
  TestWeight w(random, format, 2, 48, 192);
  std::vector<float> want(2 * 48 * 192), got(192);
  for (int64_t i = 0; i < 2 * 48; ++i) decode_row(w.view, i / 48, i % 48, &want[i * 192]);
  w.pack(layout);
  for (int64_t i = 0; i < 2 * 48; ++i) {
    decode_row(w.view, i / 48, i % 48, got.data());
    ASSERT_TRUE(std::equal(got.begin(), got.end(), want.begin() + i * 192)) << "row " << i;
  }
  // Slices and experts of a packed weight are weights of their own.
  decode_row(w.view.expert(1).slice(16, 32), 0, 5, got.data());
  EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin() + (48 + 21) * 192));
}

TEST(LinearRef, ReadsEveryLayout) {
  check(Format::kMxfp4, Layout::kTiles16x64);
  check(Format::kMxfp4, Layout::kPanels16);
  check(Format::kMxfp8, Layout::kPanels16);
}

}  // namespace
}  // namespace nibble::ops::ref
