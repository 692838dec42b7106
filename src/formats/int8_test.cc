#include "formats/int8.h"

#include <gtest/gtest.h>

#include <random>

namespace nibble {
namespace {

// Half a step of rounding, and three float32 roundings (inverse, product, step) of up to 127 steps.
TEST(Int8, ErrorIsHalfAStep) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 1000; ++round) {
    const float width = std::exp2(static_cast<float>(random() % 160) - 80);
    float x[kInt8BlockElems];
    for (float& v : x) v = normal(random) * width;
    int8_t q[kInt8BlockElems];
    const float step = int8_encode(x, kInt8BlockElems, q);
    int most = 0;
    for (int i = 0; i < kInt8BlockElems; ++i) {
      EXPECT_NEAR(q[i] * static_cast<double>(step), x[i], step * (0.5 + 127 * 3 * 0x1p-24));
      most = std::max(most, std::abs(int{q[i]}));
    }
    EXPECT_EQ(most, 127);
  }
}

TEST(Int8, TiesGoToEven) {
  const float x[] = {127, 0.5f, 1.5f, -2.5f, -127, 3};
  int8_t q[6];
  EXPECT_EQ(int8_encode(x, 6, q), 1);
  const int want[] = {127, 0, 2, -2, -127, 3};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(q[i], want[i]);
}

TEST(Int8, EdgesOfFloat32) {
  int8_t q[2];
  const float zeros[] = {0, -0.f}, tiny[] = {0x1p-101f, -0x1p-140f}, huge[] = {3.4e38f, -1e38f};
  EXPECT_EQ(int8_encode(zeros, 2, q), 0);
  EXPECT_EQ(int8_encode(tiny, 2, q), 0);
  EXPECT_EQ(q[0], 0);
  EXPECT_TRUE(std::isfinite(int8_encode(huge, 2, q)));
  EXPECT_EQ(q[0], 127);
  EXPECT_EQ(q[1], -37);
}

TEST(Int8, DamageShows) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
    const float x[] = {1, bad, 2};
    int8_t q[3];
    EXPECT_TRUE(std::isnan(int8_encode(x, 3, q)));
    for (const int8_t code : q) EXPECT_EQ(code, 0);
  }
}

}  // namespace
}  // namespace nibble
