#include "ops/linear/linear_ref.h"

#include <gtest/gtest.h>

#include "ops/test_problem.h"

namespace nibble::ops::ref {
namespace {

TEST(LinearRef, ReadsEveryLayout) {
  for (const LayoutRow& layout : kLayouts) {
    if (layout.layout == Layout::kRows) continue;
    Random random(3);
    TestWeight w(random, Format::kMxfp4, 2, 48, 192);
    std::vector<float> want(2 * 48 * 192), got(192);
    for (int64_t i = 0; i < 2 * 48; ++i) decode_row(w.view, i / 48, i % 48, &want[i * 192]);
    w.pack(layout.layout);
    for (int64_t i = 0; i < 2 * 48; ++i) {
      decode_row(w.view, i / 48, i % 48, got.data());
      ASSERT_TRUE(std::equal(got.begin(), got.end(), want.begin() + i * 192))
          << layout.name << " row " << i;
    }
    // Slices and experts of a packed weight are weights of their own.
    decode_row(w.view.expert(1).slice(16, 32), 0, 5, got.data());
    EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin() + (48 + 21) * 192)) << layout.name;
  }
}

}  // namespace
}  // namespace nibble::ops::ref
