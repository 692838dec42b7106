#include "formats/mxfp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "formats/fp8.h"
#include "formats/mxfp4.h"

namespace nibble {
namespace {

double squared_error(const Mxfp8Block& block, const float* values) {
  float decoded[kMxfp8BlockElems];
  mxfp8_decode(block.codes, block.scale, decoded);
  double error = 0;
  for (int i = 0; i < kMxfp8BlockElems; ++i) {
    const double off = static_cast<double>(decoded[i]) - static_cast<double>(values[i]);
    error += off * off;
  }
  return error;
}

TEST(Mxfp8, DecodesElementByElement) {
  Mxfp8Codes codes{};
  for (int i = 0; i < kMxfp8BlockElems; ++i) codes.bytes[i] = static_cast<uint8_t>(i * 7);
  float out[kMxfp8BlockElems];
  mxfp8_decode(codes, 120, out);
  for (int i = 0; i < kMxfp8BlockElems; ++i)
    EXPECT_EQ(out[i], e4m3_to_float(codes.bytes[i]) * 0x1p-7f) << i;
}

TEST(Mxfp8, EncodesWhatItCanHoldExactly) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    const int scale = 10 + static_cast<int>(random() % 230);
    float values[kMxfp8BlockElems];
    for (float& v : values)
      v = e4m3_to_float(static_cast<uint8_t>(random() % 0x7f | (random() & 0x80))) *
          e8m0_to_float(static_cast<uint8_t>(scale));
    EXPECT_EQ(squared_error(mxfp8_encode(values), values), 0) << "scale " << scale;
  }
}

TEST(Mxfp8, EncodesZerosWithScaleZero) {
  const float zeros[kMxfp8BlockElems] = {};
  const Mxfp8Block block = mxfp8_encode(zeros);
  EXPECT_EQ(block.scale, 0);
  for (const uint8_t byte : block.codes.bytes) EXPECT_EQ(byte, 0);
}

// Brute force over scales and codes: nothing does better.
TEST(Mxfp8, NoScaleHasLessError) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 60; ++round) {
    float values[kMxfp8BlockElems];
    const float width = std::exp2(static_cast<float>(random() % 40) - 20);
    for (float& v : values) v = normal(random) * width;
    if (round % 3 == 0) values[0] *= 50;
    if (round % 3 == 1)
      for (int i = 1; i < kMxfp8BlockElems; ++i) values[i] *= 1e-6f;
    const Mxfp8Block block = mxfp8_encode(values);
    const double error = squared_error(block, values);
    for (int scale = block.scale - 12; scale < block.scale + 12; ++scale) {
      double best = 0;
      for (const float v : values) {
        double least = INFINITY;
        for (int code = 0; code < 256; ++code) {
          if ((code & 0x7f) == 0x7f) continue;
          const double off = static_cast<double>(v) -
                             static_cast<double>(e4m3_to_float(static_cast<uint8_t>(code))) *
                                 std::ldexp(1.0, scale - 127);
          least = std::min(least, off * off);
        }
        best += least;
      }
      // Both sums round differently: 64 additions of doubles, relative 64 * 2^-53.
      EXPECT_LE(error, best * (1 + 1e-14)) << "round " << round << " scale " << scale;
    }
  }
}

TEST(Mxfp8, EncodesExtremes) {
  for (const float largest : {3.4e38f, 1e-38f, 1e-45f}) {
    float values[kMxfp8BlockElems] = {largest, -largest / 2};
    const Mxfp8Block block = mxfp8_encode(values);
    float out[kMxfp8BlockElems];
    mxfp8_decode(block.codes, block.scale, out);
    for (const float v : out) EXPECT_TRUE(std::isfinite(v));
    // Half a unit of 3 bits, 2^-4; at the end of float32's range also clipped to 1.875 * 2^127.
    if (largest > 1e-38f) {
      EXPECT_NEAR(out[0] / largest, 1, .0625 + .0625);
    }
  }
}

}  // namespace
}  // namespace nibble
