#include "ops/gpu_matmul/e2m1_rows.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

namespace nibble::ops {
namespace {

TEST(E2m1, IsTheNearestCodeAndTheEvenOneOfTwo) {
  for (float x = -8; x <= 8; x += 0x1p-6f) {
    const float got = kE2m1[e2m1_from_float(x)];
    int nearest = 0;
    for (int code = 0; code < 16; ++code) {
      const float off = std::fabs(kE2m1[code] - x), best = std::fabs(kE2m1[nearest] - x);
      if (off < best || (off == best && code % 2 == 0)) nearest = code;
    }
    EXPECT_EQ(got, kE2m1[nearest]) << x;
  }
}

std::vector<float> normal(int64_t n, uint32_t seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> of(0, 0.3f);
  std::vector<float> x(n);
  for (float& v : x) v = of(bits);
  return x;
}

// A block of 32 under a power of two: the largest lies in (3.5, 7] of its units, so that none is
// off by more than a unit (from 4 to 6), and what is a code there stays as it is.
TEST(E2m1Rows, Mxfp4BlocksAreOff) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const std::vector<float> x = normal(96, seed);
    std::vector<float> y = x;
    round_to_e2m1(y.data(), 96, Format::kMxfp4);
    for (int b = 0; b < 96; b += 32) {
      float largest = 0;
      for (int i = b; i < b + 32; ++i) largest = std::fmax(largest, std::fabs(x[i]));
      const float unit = std::exp2(std::ceil(std::log2(largest / 7)));
      for (int i = b; i < b + 32; ++i) {
        const float magnitude = std::fabs(x[i]) / unit;
        EXPECT_LE(std::fabs(y[i] - x[i]) / unit, magnitude < 2 ? 0.25f : magnitude < 4 ? 0.5f : 1);
        EXPECT_EQ(y[i], unit * kE2m1[e2m1_from_float(x[i] / unit)]);
      }
    }
    std::vector<float> again = y;
    round_to_e2m1(again.data(), 96, Format::kMxfp4);
    EXPECT_EQ(again, y);
  }
}

TEST(E2m1Rows, ByHand) {
  // 7 is a code of no scale: 6 of a unit of 1. 7.5 takes a unit of 2, which makes 3.75 of it 4.
  std::vector<float> x(64);
  x[0] = 7, x[1] = 0.2f, x[2] = -2.6f, x[32] = 7.5f, x[33] = -1.4f;
  round_to_e2m1(x.data(), 64, Format::kMxfp4);
  EXPECT_EQ((std::vector<float>{x[0], x[1], x[2], x[32], x[33]}),
            (std::vector<float>{6, 0, -3, 8, -1}));
  // NVFP4: the float32 is 2688 / 2688 = 1; the second block's scale 24 / 6 = 4, the third's 0.
  std::vector<float> y(48);
  y[0] = 2688, y[1] = 220, y[16] = 24, y[17] = -7, y[18] = 1.1f;
  round_to_e2m1(y.data(), 48, Format::kNvfp4);
  EXPECT_EQ((std::vector<float>{y[0], y[1], y[16], y[17], y[18], y[47]}),
            (std::vector<float>{2688, 224, 24, -8, 2, 0}));
}

TEST(E2m1Rows, NvfpBlocksAreNearTheirValues) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::vector<float> x = normal(128, seed);
    for (int i = 16; i < 32; ++i) x[i] *= 100;  // a neighbour's size is another block's matter
    std::vector<float> y = x;
    round_to_e2m1(y.data(), 128, Format::kNvfp4);
    for (int b = 0; b < 128; b += 16) {
      float largest = 0;
      for (int i = b; i < b + 16; ++i) largest = std::fmax(largest, std::fabs(x[i]));
      // A unit is a sixth of the largest, off by a 16th of E4M3's, or half its least step of 448.
      for (int i = b; i < b + 16; ++i)
        EXPECT_LE(std::fabs(y[i] - x[i]), largest / 6 * (1 + 6 * 0x1p-4f)) << b << " " << i;
    }
  }
}

TEST(E2m1Rows, WhatIsNoNumberShows) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (const Format format : {Format::kMxfp4, Format::kNvfp4}) {
      std::vector<float> x = normal(64, 1);
      x[40] = bad;
      round_to_e2m1(x.data(), 64, format);
      EXPECT_FALSE(std::isfinite(x[40])) << format_name(format);
      EXPECT_EQ(std::isfinite(x[0]), format == Format::kMxfp4);  // a float32 is its whole row's
    }
}

TEST(E2m1Rows, WhoTakesWhat) {
  const auto of = rounded_inputs;
  EXPECT_EQ(of(ActFormat::kFp4, Format::kMxfp4), ActFormat::kFp4);
  EXPECT_EQ(of(ActFormat::kFp4, Format::kNvfp4), ActFormat::kFp4);
  EXPECT_EQ(of(ActFormat::kFp4, Format::kMxfp8), ActFormat::kFp8);
  EXPECT_EQ(of(ActFormat::kFp8, Format::kMxfp4), ActFormat::kFp8);
  EXPECT_EQ(of(ActFormat::kFp4, Format::kBF16), ActFormat::kFloat);
  EXPECT_EQ(of(ActFormat::kBF16, Format::kMxfp4), ActFormat::kFloat);
}

}  // namespace
}  // namespace nibble::ops
