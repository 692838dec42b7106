// Small floating-point formats by their definition: value of a code, and the nearest code of a
// value (ties to even), without a look at the project's own codecs.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace nibble::emulated {

// a + b rounded to odd: exact, or between its neighbours with the last bit set.
inline double odd_sum(double a, double b) {
  const double s = a + b;
  if (!std::isfinite(s)) return s;
  const double of_b = s - a, error = (a - (s - of_b)) + (b - of_b);
  auto bits = std::bit_cast<uint64_t>(s);
  if (error == 0 || (bits & 1) != 0) return s;
  bits += (error > 0) == (s > 0) ? 1 : -1;
  return std::bit_cast<double>(bits);
}

enum class Top : uint8_t { kInfinity, kNan, kFinite };  // what the largest exponent is for

// kExponent and kMantissa bits below a sign, bias 2^(kExponent - 1) - 1. kNan: all ones is NaN,
// there is no infinity (E4M3); kFinite: neither (E2M1).
template <int kExponent, int kMantissa, Top kTop>
struct SmallFloat {
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr uint32_t kSign = 1u << (kExponent + kMantissa);
  static constexpr uint32_t kOnes = kSign - 1;
  static constexpr uint32_t kMost = kTop == Top::kInfinity ? (kOnes >> kMantissa << kMantissa) - 1
                                    : kTop == Top::kNan    ? kOnes - 1
                                                           : kOnes;  // the largest finite code

  static double decode(uint32_t code) {
    const int exponent = static_cast<int>((code & kOnes) >> kMantissa);
    const uint32_t fraction = code & ((1u << kMantissa) - 1);
    double v;
    if ((code & kOnes) > kMost)
      v = kTop == Top::kInfinity && fraction == 0 ? std::numeric_limits<double>::infinity()
                                                  : std::numeric_limits<double>::quiet_NaN();
    else if (exponent == 0)
      v = std::ldexp(fraction, 1 - kBias - kMantissa);
    else
      v = std::ldexp(fraction + (1u << kMantissa), exponent - kBias - kMantissa);
    return (code & kSign) != 0 ? -v : v;
  }

  // `saturate`: what is too large becomes the largest finite.
  static uint16_t encode(double v, bool saturate = kTop == Top::kFinite) {
    if (v != v) return static_cast<uint16_t>(kOnes);  // a GPU's NaN: all ones, positive
    const uint32_t sign = std::signbit(v) ? kSign : 0;
    v = std::fabs(v);
    if (std::isinf(v)) return static_cast<uint16_t>(sign | beyond(saturate));
    int exponent = v == 0 ? 1 - kBias : std::ilogb(v);
    if (exponent < 1 - kBias) exponent = 1 - kBias;
    if (exponent > kBias + 2) return static_cast<uint16_t>(sign | beyond(saturate));
    // In units of the last place, to the nearest even: exact in double.
    const double units = std::nearbyint(std::ldexp(v, kMantissa - exponent));
    const auto code =
        static_cast<int64_t>(units) + (static_cast<int64_t>(exponent + kBias - 1) << kMantissa);
    if (code > int64_t{kMost}) return static_cast<uint16_t>(sign | beyond(saturate));
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(code));
  }

 private:
  static uint32_t beyond(bool saturate) {
    if (saturate || kTop == Top::kFinite) return kMost;
    return kTop == Top::kInfinity ? kMost + 1 : kOnes;
  }
};

using F16 = SmallFloat<5, 10, Top::kInfinity>;
using Bf16 = SmallFloat<8, 7, Top::kInfinity>;
using E5m2 = SmallFloat<5, 2, Top::kInfinity>;
using E4m3 = SmallFloat<4, 3, Top::kNan>;
using E2m1 = SmallFloat<2, 1, Top::kFinite>;

// Bf16, quickly.
struct QuickBf16 {
  static double decode(uint32_t code) { return std::bit_cast<float>(code << 16); }
  static uint16_t encode(double v) {
    if (!(std::fabs(v) >= 0x1p-126) || std::isinf(v)) return Bf16::encode(v);
    auto bits = std::bit_cast<uint64_t>(v);
    bits += (uint64_t{1} << 44) - 1 + (bits >> 45 & 1);
    bits &= ~((uint64_t{1} << 45) - 1);
    const double r = std::bit_cast<double>(bits);  // past the largest the cast gives infinity
    return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(r)) >> 16);
  }
};
// F16 in float32: exact, by exponents alone.
inline float f16_value(uint32_t code) {
  const uint32_t magnitude = code & 0x7fff, sign = (code & 0x8000) << 16;
  if (magnitude >= 0x7c00)
    return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ff) << 13);
  const float v = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(v) | sign);
}
// The nearest F16 of a float32.
inline uint16_t f16_code(float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v), sign = bits >> 16 & 0x8000;
  const float magnitude = std::fabs(v);
  if (v != v) return 0x7fff;
  if (magnitude >= 65520.f) return static_cast<uint16_t>(sign | 0x7c00);
  uint32_t code;
  if (magnitude < 0x1p-14f) {  // 2^-24 each: float32's own rounding does it
    code = std::bit_cast<uint32_t>(magnitude + 0.5f) - std::bit_cast<uint32_t>(0.5f);
  } else {
    const uint32_t m = std::bit_cast<uint32_t>(magnitude);
    code = (m + 0xfff + (m >> 13 & 1) - (112u << 23)) >> 13;
  }
  return static_cast<uint16_t>(sign | code);
}

}  // namespace nibble::emulated
