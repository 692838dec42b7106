#include "formats/nvfp4.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "formats/encode.h"
#include "formats/fp8.h"
#include "formats/mxfp4.h"

namespace nibble {
namespace {

double squared_error(const Nvfp4Block& block, float g, const float* values) {
  float decoded[kNvfp4BlockElems];
  nvfp4_decode(block.codes, block.scale, g, decoded);
  double error = 0;
  for (int i = 0; i < kNvfp4BlockElems; ++i)
    error += std::pow(double{decoded[i]} - double{values[i]}, 2);
  return error;
}

TEST(Nvfp4, EncodesWhatItCanHoldExactly) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    const float g = std::ldexp(1.f, -static_cast<int>(random() % 20));
    const auto scale = static_cast<uint8_t>(0x08 + random() % 0x77);  // a normal one
    Nvfp4Codes codes;
    for (uint8_t& b : codes.bytes) b = static_cast<uint8_t>(random());
    codes.bytes[0] = 0x7f;  // 6 and -6: the scale is the only one that holds them
    float values[kNvfp4BlockElems];
    nvfp4_decode(codes, scale, g, values);
    EXPECT_EQ(squared_error(nvfp4_encode(values, g), g, values), 0) << int{scale};
  }
}

// Brute force over every scale and code: nothing does better.
TEST(Nvfp4, NoScaleHasLessError) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 300; ++round) {
    float values[kNvfp4BlockElems], largest = 0;
    for (float& v : values) v = normal(random), largest = std::max(largest, std::fabs(v));
    const float g = nvfp4_row_scale(4 * largest);
    double least = INFINITY;
    for (int scale = 1; scale <= kLargestNvfp4Scale; ++scale) {
      Nvfp4Block block{.codes = {}, .scale = static_cast<uint8_t>(scale)};
      const double step = double{e4m3_to_float(block.scale)} * g;
      for (int i = 0; i < kNvfp4BlockElems; ++i) {
        int best = 0;
        for (int code = 1; code < 16; ++code)
          if (std::fabs(kE2m1[code] * step - values[i]) < std::fabs(kE2m1[best] * step - values[i]))
            best = code;
        block.codes.bytes[i / 2] |= static_cast<uint8_t>(best << (i % 2 * 4));
      }
      least = std::min(least, squared_error(block, g, values));
    }
    EXPECT_LE(squared_error(nvfp4_encode(values, g), g, values), least * (1 + 1e-5));
  }
}

TEST(Nvfp4, ZerosHaveScaleZeroAndRowsOfThemOne) {
  const float zeros[kNvfp4BlockElems] = {};
  EXPECT_EQ(nvfp4_row_scale(0), 1);
  const Nvfp4Block block = nvfp4_encode(zeros, 1);
  EXPECT_EQ(block.scale, 0);
  for (const uint8_t byte : block.codes.bytes) EXPECT_EQ(byte, 0);
}

// The largest value of a row has the largest scale: 6 * 448 * g.
TEST(Nvfp4, ARowReachesItsLargestValue) {
  float values[kNvfp4BlockElems] = {3.7f, -1};
  const float g = nvfp4_row_scale(3.7f);
  const Nvfp4Block block = nvfp4_encode(values, g);
  float decoded[kNvfp4BlockElems];
  nvfp4_decode(block.codes, block.scale, g, decoded);
  EXPECT_NEAR(decoded[0], 3.7f, 3.7f * 0x1p-22f);
}

}  // namespace
}  // namespace nibble
