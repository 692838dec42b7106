#include "formats/fp8.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nibble {
namespace {

// By the drawing in the header, in double.
double value_of(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(1 + mantissa / 8.0, exponent - 7);
  return code & 0x80 ? -magnitude : magnitude;
}

TEST(E4m3, DecodesEveryCode) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_float(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    EXPECT_EQ(value, value_of(code)) << code;
    EXPECT_EQ(std::signbit(value), code >= 0x80) << code;
    EXPECT_EQ(e4m3_from_float(value), code);
  }
  EXPECT_EQ(e4m3_to_float(0x7e), kE4m3Largest);
}

// Against a search through all codes: the nearest, of two the even one, and 448 at most.
TEST(E4m3, RoundsToNearestEvenAndSaturates) {
  int checked = 0;
  for (uint32_t bits = 0x38000000; bits < 0x44800000; bits += 0x1001) {  // 3e-5 to 1024
    const float value = std::bit_cast<float>(bits);
    int best = 0;
    for (int code = 1; code < 0x7f; ++code) {
      const double off = std::fabs(value_of(code) - value),
                   least = std::fabs(value_of(best) - value);
      if (off < least || (off == least && code % 2 == 0)) best = code;
    }
    ASSERT_EQ(e4m3_from_float(value), best) << value;
    ASSERT_EQ(e4m3_from_float(-value), best | 0x80) << value;
    ++checked;
  }
  EXPECT_GT(checked, 50000);
  for (int code = 0; code < 0x7e; ++code) {  // every tie
    const auto tie = static_cast<float>((value_of(code) + value_of(code + 1)) / 2);
    EXPECT_EQ(e4m3_from_float(tie), code + code % 2) << code;
  }
}

TEST(E4m3, Extremes) {
  EXPECT_EQ(e4m3_from_float(464), 0x7e);
  EXPECT_EQ(e4m3_from_float(1e9f), 0x7e);
  EXPECT_EQ(e4m3_from_float(-INFINITY), 0xfe);
  EXPECT_EQ(e4m3_from_float(0x1p-10f), 0);  // a tie, to even
  EXPECT_EQ(e4m3_from_float(0.00098f), 1);
  EXPECT_EQ(e4m3_from_float(-0.f), 0x80);
  EXPECT_EQ(e4m3_from_float(NAN) & 0x7f, 0x7f);
}

}  // namespace
}  // namespace nibble
