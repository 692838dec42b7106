// The bit model against float64, which holds every term of these sums exactly: the same rule said
// another way, cases worked out by hand, and the bound that kernels' tests are held to.
#include "cuda/mma_sm12x_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "formats/fp8.h"

namespace nibble::cuda::sm12x {
namespace {

constexpr double kE2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
double e2m1(int code) { return code & 8 ? -kE2m1[code & 7] : kE2m1[code & 7]; }

// The exponent that a format's code states: that of a subnormal is the least of normal ones.
int exponent_of(double value, int least) {
  return value == 0 ? kNoExponent : std::max(std::ilogb(value), least);
}
double towards_zero(double value, int last) {  // to a multiple of 2^last
  return std::ldexp(std::trunc(std::ldexp(value, -last)), last);
}
float to_float_towards_zero(double value) {
  if (value == 0) return 0;
  const int last = std::max(std::ilogb(value), -126) - 23;
  return static_cast<float>(towards_zero(value, last));
}

struct Dot {
  std::vector<int> a, b;  // codes: E2M1, or E4M3, and E4M3
  bool is_wide = false;   // a is E4M3
  int scale_a = 127, scale_b = 127;
  float sum = 0;

  Dot() : a(32), b(32) {}
  float modelled() const {
    const auto x = [&](int k) {
      const auto code = static_cast<uint32_t>(a[k]);
      return is_wide ? e4m3_term(code) : e2m1_term(code);
    };
    const auto y = [&](int k) { return e4m3_term(static_cast<uint32_t>(b[k])); };
    return dot_k32(x, y, static_cast<uint32_t>(scale_a), static_cast<uint32_t>(scale_b), sum);
  }
  // As the paper says it, in float64.
  float by_rule() const {
    const int scale = scale_a + scale_b - 254;
    int most = exponent_of(sum, -126);
    for (int k = 0; k < 32; ++k)
      most = std::max(
          most, exponent_of(of_a(k), is_wide ? -6 : 0) + exponent_of(kE4m3[b[k]], -6) + scale);
    double all = towards_zero(sum, most - 25);
    for (int k = 0; k < 32; ++k) all += towards_zero(term(k), most - 25);
    return to_float_towards_zero(all);
  }
  double of_a(int k) const { return is_wide ? double{kE4m3[a[k]]} : e2m1(a[k]); }
  double term(int k) const { return std::ldexp(of_a(k) * kE4m3[b[k]], scale_a + scale_b - 254); }
  double exact() const {
    double all = sum;
    for (int k = 0; k < 32; ++k) all += term(k);
    return all;
  }
  double magnitude() const {
    double all = std::fabs(sum);
    for (int k = 0; k < 32; ++k) all += std::fabs(term(k));
    return all;
  }
};

Dot random_dot(std::mt19937& bits) {
  Dot dot;
  dot.is_wide = bits() % 2 == 0;
  for (int& code : dot.a) do
      code = static_cast<int>(bits() % (dot.is_wide ? 256 : 16));
    while ((code & 127) == 127);
  for (int& code : dot.b) do
      code = static_cast<int>(bits() % 256);
    while ((code & 127) == 127);
  dot.scale_a = 110 + static_cast<int>(bits() % 30), dot.scale_b = 127;
  const int exponent = static_cast<int>(bits() % 50) - 35;  // far below to far above the products
  dot.sum = std::ldexp(static_cast<float>(static_cast<int>(bits() % 0x1ffffff) - 0xffffff),
                       exponent - 23 + dot.scale_a - 127);
  return dot;
}

TEST(MmaSm12xModel, TermsAreTheFormatsValues) {
  for (uint32_t code = 0; code < 256; ++code) {
    const Term t = e4m3_term(code);
    if ((code & 127) == 127) {
      EXPECT_EQ(t.significand, kNotANumber);
      continue;
    }
    EXPECT_EQ(std::ldexp(t.significand, t.exponent - 3), kE4m3[code]) << code;
    EXPECT_EQ(t.exponent, exponent_of(kE4m3[code], -6)) << code;
  }
  for (int code = 0; code < 16; ++code) {
    const Term t = e2m1_term(static_cast<uint32_t>(code));
    EXPECT_EQ(std::ldexp(t.significand, t.exponent - 3), e2m1(code)) << code;
    EXPECT_EQ(t.exponent, exponent_of(e2m1(code), 0)) << code;
  }
}

TEST(MmaSm12xModel, IsTheRule) {
  std::mt19937 bits(1);
  for (int i = 0; i < 200000; ++i) {
    const Dot dot = random_dot(bits);
    ASSERT_EQ(bits_of(dot.modelled()), bits_of(dot.by_rule())) << "case " << i;
  }
}

// 33 terms lose less than 2^-25 of the largest each, the sum less than 2^-23 of itself.
TEST(MmaSm12xModel, IsNearTheSum) {
  std::mt19937 bits(2);
  double worst = 0;
  for (int i = 0; i < 200000; ++i) {
    const Dot dot = random_dot(bits);
    const double off = std::fabs(dot.modelled() - dot.exact());
    // A product's value may be twice its exponent's power, or, of 0.5, half: four times the cut.
    ASSERT_LE(off, dot.magnitude() * (33 * 0x1p-25 * 2 + 0x1p-23)) << "case " << i;
    worst = std::max(worst, off / dot.magnitude());
  }
  EXPECT_GT(worst, 0x1p-26);  // it does cut
}

TEST(MmaSm12xModel, WorkedOutByHand) {
  constexpr int kOne4 = 2, kHalf4 = 1, kSix4 = 7, kOne8 = 0x38;  // codes
  Dot dot;
  dot.sum = 1;
  dot.a[5] = kOne4, dot.b[5] = kOne8;
  EXPECT_EQ(dot.modelled(), 2);
  dot.a[5] = kOne4 | 8;
  EXPECT_EQ(dot.modelled(), 0);
  // Below 1 there are 25 bits: what is smaller goes, each term by itself.
  dot.sum = 1, dot.a[5] = kOne4;
  dot.scale_a = 127 - 26;
  for (int k = 0; k < 32; ++k) dot.a[k] = kOne4 | 8, dot.b[k] = kOne8;
  EXPECT_EQ(dot.modelled(), 1);
  // At 25 they count, and the sum is cut, not rounded: 1 - 2^-25 becomes the float below 1.
  std::fill(dot.a.begin() + 1, dot.a.end(), 0);
  dot.scale_a = 127 - 25;
  EXPECT_EQ(dot.modelled(), 1 - 0x1p-24f);
  dot.a[0] = kOne4;
  EXPECT_EQ(dot.modelled(), 1);
  // Exponents count, not values: 0.5 has that of 1, so 6 has but one more than 2.
  Dot wide;
  wide.sum = 0x1p-26f;
  wide.a[0] = kHalf4, wide.b[0] = kOne8;
  EXPECT_EQ(wide.modelled(), 0.5f);
  wide.a[1] = kSix4, wide.b[1] = kOne8;
  EXPECT_EQ(wide.modelled(), 6.5f);
}

TEST(MmaSm12xModel, NoNumbersStayNone) {
  Dot dot;
  dot.b[3] = 0x7f;
  EXPECT_TRUE(std::isnan(dot.modelled()));
  dot.b[3] = 0;
  dot.scale_a = 255;
  EXPECT_TRUE(std::isnan(dot.modelled()));
  dot.scale_a = 127, dot.sum = NAN;
  EXPECT_TRUE(std::isnan(dot.modelled()));
}

// ---- k 64 ----

struct Dot64 {
  std::vector<int> a, b, scale_a, scale_b;  // codes: E2M1, E4M3 of groups of 16
  float sum = 0;

  Dot64() : a(64), b(64), scale_a(4, 0x38), scale_b(4, 0x38) {}
  float modelled() const {
    const auto of = [](const std::vector<int>& codes) {
      return [&codes](int i) { return static_cast<uint32_t>(codes[i]); };
    };
    const auto scales = [](const std::vector<int>& codes) {
      return [&codes](int g) { return e4m3_term(static_cast<uint32_t>(codes[g]) & 127); };
    };
    return dot_k64(of(a), of(b), scales(scale_a), scales(scale_b), sum);
  }
  double scale(int g) const { return kE4m3[scale_a[g] & 127] * kE4m3[scale_b[g] & 127]; }
  double group(int g, bool of_magnitudes = false) const {
    double all = 0;
    for (int k = 16 * g; k < 16 * (g + 1); ++k) {
      const double product = e2m1(a[k]) * e2m1(b[k]);
      all += of_magnitudes ? std::fabs(product) : product;
    }
    return all * scale(g);
  }
  // As the paper says it, in float64: a group's exponent is that of its scales.
  float by_rule() const {
    int most = exponent_of(sum, -126);
    for (int g = 0; g < 4; ++g)
      most = std::max(most, exponent_of(kE4m3[scale_a[g] & 127], -6) +
                                exponent_of(kE4m3[scale_b[g] & 127], -6));
    double all = towards_zero(sum, most - 35);
    for (int g = 0; g < 4; ++g) all += towards_zero(group(g), most - 35);
    return to_float_towards_zero(all);
  }
};

Dot64 random_dot64(std::mt19937& bits) {
  Dot64 dot;
  for (auto* codes : {&dot.a, &dot.b})
    for (int& code : *codes) code = static_cast<int>(bits() % 16);
  for (auto* scales : {&dot.scale_a, &dot.scale_b})
    for (int& code : *scales)
      code = static_cast<int>(bits() % 127) + static_cast<int>(bits() & 128);
  const int exponent = static_cast<int>(bits() % 60) - 40;
  dot.sum = std::ldexp(static_cast<float>(static_cast<int>(bits() % 0x1ffffff) - 0xffffff),
                       exponent - 23);
  return dot;
}

TEST(MmaSm12xModelK64, IsTheRule) {
  std::mt19937 bits(3);
  for (int i = 0; i < 100000; ++i) {
    const Dot64 dot = random_dot64(bits);
    ASSERT_EQ(bits_of(dot.modelled()), bits_of(dot.by_rule())) << "case " << i;
  }
}

// Five terms lose less than 2^-35 of 2 to the largest exponent each, which may be that of two
// scales below 4; the sum less than 2^-23 of itself.
TEST(MmaSm12xModelK64, IsNearTheSum) {
  std::mt19937 bits(4);
  for (int i = 0; i < 100000; ++i) {
    const Dot64 dot = random_dot64(bits);
    double exact = dot.sum, most = std::fabs(dot.sum);
    for (int g = 0; g < 4; ++g) exact += dot.group(g), most = std::max(most, dot.scale(g));
    ASSERT_LE(std::fabs(dot.modelled() - exact), 5 * 0x1p-35 * most + 0x1p-23 * std::fabs(exact))
        << "case " << i;
  }
}

TEST(MmaSm12xModelK64, WorkedOutByHand) {
  constexpr int kOne4 = 2, kSix4 = 7, kOne8 = 0x38, kHalf8 = 0x30, kMinus = 8;
  Dot64 dot;
  dot.sum = 1;
  for (int k = 0; k < 64; ++k) dot.a[k] = dot.b[k] = kSix4;
  dot.scale_a = {kOne8, kHalf8, kOne8, kOne8}, dot.scale_b = {kOne8, kOne8, kHalf8, kOne8};
  EXPECT_EQ(dot.modelled(), 1 + 16 * 36 * 3);
  for (int k = 0; k < 16; ++k) dot.a[k] |= kMinus;
  EXPECT_EQ(dot.modelled(), 1 + 16 * 36);
  dot.scale_a[0] |= 128;  // signs of scales are not looked at
  EXPECT_EQ(dot.modelled(), 1 + 16 * 36);
  // 35 bits below the exponent of the scales, 0, which the products' own does not move.
  Dot64 small;
  small.a[0] = small.b[0] = kOne4, small.a[1] = kOne4 | kMinus, small.b[1] = kOne4;
  small.sum = 0x1p-35f;
  EXPECT_EQ(small.modelled(), 0x1p-35f);
  small.sum = 0x1p-36f;
  EXPECT_EQ(small.modelled(), 0);
}

// Scales in E8M0 that E4M3 has, too, add up alike; others move the sum.
TEST(MmaSm12xModelK64, E8m0IsAPowerOfTwo) {
  std::mt19937 bits(5);
  for (int i = 0; i < 1000; ++i) {
    Dot64 dot = random_dot64(bits);
    std::vector<int> exponents(4);
    for (int g = 0; g < 4; ++g) {
      exponents[g] = static_cast<int>(bits() % 15) - 6;
      dot.scale_a[g] = (exponents[g] + 7) << 3, dot.scale_b[g] = 0x38;
    }
    const auto of = [](const std::vector<int>& codes) {
      return [&codes](int k) { return static_cast<uint32_t>(codes[k]); };
    };
    const auto by_e8m0 = [&](int up) {
      const auto of_a = [&](int g) { return e8m0_term(static_cast<uint32_t>(exponents[g] + 127)); };
      const auto of_b = [&](int) { return e8m0_term(static_cast<uint32_t>(127 + up)); };
      return dot_k64(of(dot.a), of(dot.b), of_a, of_b, std::ldexp(dot.sum, up));
    };
    ASSERT_EQ(bits_of(by_e8m0(0)), bits_of(dot.modelled())) << "case " << i;
    ASSERT_EQ(bits_of(by_e8m0(20)), bits_of(std::ldexp(dot.modelled(), 20))) << "case " << i;
  }
  EXPECT_EQ(e8m0_term(255).significand, kNotANumber);
}

TEST(MmaSm12xModelK64, NoNumbersStayNone) {
  Dot64 dot;
  dot.scale_b[2] = 0x7f;
  EXPECT_TRUE(std::isnan(dot.modelled()));
  Dot64 infinite;
  infinite.sum = INFINITY;
  EXPECT_TRUE(std::isnan(infinite.modelled()));
}

}  // namespace
}  // namespace nibble::cuda::sm12x
