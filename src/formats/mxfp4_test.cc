#include "formats/mxfp4.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "formats/format.h"

namespace nibble {
namespace {

double squared_error(const Mxfp4Block& block, const float* values) {
  float decoded[kMxfp4BlockElems];
  mxfp4_decode(block.codes, block.scale, decoded);
  double error = 0;
  for (int i = 0; i < kMxfp4BlockElems; ++i) {
    const double off = static_cast<double>(decoded[i]) - static_cast<double>(values[i]);
    error += off * off;
  }
  return error;
}

// The vector of the gpt-oss fact sheet: every code in order, low nibble first, under 2^-6.
TEST(Mxfp4, DecodesLowNibbleFirst) {
  const Mxfp4Codes codes = {{0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe}};
  float out[kMxfp4BlockElems];
  mxfp4_decode(codes, 121, out);
  const float expected[] = {0,        .0078125f, .015625f, .0234375f,  .03125f,   .046875f,
                            .0625f,   .09375f,   -0.f,     -.0078125f, -.015625f, -.0234375f,
                            -.03125f, -.046875f, -.0625f,  -.09375f};
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(out[i], expected[i]) << i;
    EXPECT_EQ(std::signbit(out[i]), i >= 8) << i;
  }
}

TEST(Mxfp4, ScalesAreExactPowersOfTwo) {
  for (int s = 0; s < 255; ++s)
    EXPECT_EQ(static_cast<double>(e8m0_to_float(static_cast<uint8_t>(s))),
              std::ldexp(1.0, s - 127));
  EXPECT_GT(e8m0_to_float(0), 0.f);  // a subnormal, not flushed
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
}

TEST(Mxfp4, EncodesWhatItCanHoldExactly) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    const int scale = 1 + static_cast<int>(random() % 250);
    float values[kMxfp4BlockElems];
    for (float& v : values) v = kE2m1[random() % 16] * e8m0_to_float(static_cast<uint8_t>(scale));
    const Mxfp4Block block = mxfp4_encode(values);
    EXPECT_EQ(squared_error(block, values), 0) << "scale " << scale;
  }
}

TEST(Mxfp4, EncodesZerosWithScaleZero) {
  const float zeros[kMxfp4BlockElems] = {};
  const Mxfp4Block block = mxfp4_encode(zeros);
  EXPECT_EQ(block.scale, 0);
  for (const uint8_t byte : block.codes.bytes) EXPECT_EQ(byte, 0);
}

// Brute force over all scales and codes: nothing does better.
TEST(Mxfp4, NoScaleHasLessError) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 300; ++round) {
    float values[kMxfp4BlockElems];
    const float width = std::exp2(static_cast<float>(random() % 40) - 20);
    for (float& v : values) v = normal(random) * width;
    if (round % 3 == 0) values[0] *= 20;  // an outlier that is worth clipping, or not
    const double error = squared_error(mxfp4_encode(values), values);
    for (int scale = 60; scale < 200; ++scale) {
      double best = 0;
      for (const float v : values) {
        double least = INFINITY;
        for (const float code : kE2m1) {
          const double off =
              static_cast<double>(v) - static_cast<double>(code) * std::ldexp(1.0, scale - 127);
          least = std::min(least, off * off);
        }
        best += least;
      }
      // Both sums round differently: 64 additions of doubles, relative 64 * 2^-53.
      EXPECT_LE(error, best * (1 + 1e-14)) << "round " << round << " scale " << scale;
    }
  }
}

TEST(Mxfp4, EncodesExtremes) {
  for (const float largest : {3.4e38f, 1e-38f, 1e-45f}) {
    float values[kMxfp4BlockElems] = {largest, -largest / 2};
    const Mxfp4Block block = mxfp4_encode(values);
    float out[kMxfp4BlockElems];
    mxfp4_decode(block.codes, block.scale, out);
    for (const float v : out) EXPECT_TRUE(std::isfinite(v));
    // The nearest code is off by less than a quarter, but for values under the smallest step.
    if (largest > 1e-38f) {
      EXPECT_NEAR(out[0] / largest, 1, .25);
    }
  }
}

TEST(Format, TableIsInEnumOrderAndCountsBytes) {
  int index = 0;
  for (const FormatRow& row : kFormats) EXPECT_EQ(static_cast<int>(row.format), index++);
  EXPECT_EQ(format_bytes(Format::kMxfp4, 2880), 90 * 17);
  EXPECT_EQ(format_bytes(Format::kBF16, 10), 20);
  EXPECT_EQ(format_name(Format::kMxfp4), "mxfp4");
}

}  // namespace
}  // namespace nibble
