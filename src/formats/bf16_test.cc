#include "formats/bf16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace nibble {
namespace {

TEST(Bf16, EveryValueSurvives) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = bf16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bf16_to_float(bf16_from_float(value))));
    } else {
      EXPECT_EQ(bf16_from_float(value), bits);
    }
  }
}

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(bf16_from_float(1.f + 0x1p-8f), 0x3f80);             // tie: down to even
  EXPECT_EQ(bf16_from_float(1.f + 0x1p-7f + 0x1p-8f), 0x3f82);   // tie: up to even
  EXPECT_EQ(bf16_from_float(1.f + 0x1p-8f + 0x1p-20f), 0x3f81);  // above the tie
  EXPECT_EQ(bf16_from_float(1.f + 0x1p-8f - 0x1p-20f), 0x3f80);  // below it
  EXPECT_EQ(bf16_from_float(-1.f - 0x1p-7f - 0x1p-8f), 0xbf82);
  EXPECT_EQ(bf16_from_float(std::numeric_limits<float>::max()), 0x7f80);  // to infinity
  EXPECT_EQ(bf16_from_float(0x1p-133f), 0x0001);                          // smallest subnormal
  EXPECT_EQ(bf16_from_float(-0.f), 0x8000);
}

// A NaN whose payload lies in the lower half must not become infinity.
TEST(Bf16, KeepsNaN) {
  EXPECT_TRUE(std::isnan(bf16_to_float(bf16_from_float(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(bf16_to_float(bf16_from_float(std::bit_cast<float>(0xffffffffu)))));
}

}  // namespace
}  // namespace nibble
