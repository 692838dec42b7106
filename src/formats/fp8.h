// FP8 E4M3 (the "fn" variant: no infinity), one value a byte.
// Source: OCP 8-bit Floating Point Specification 1.0.
//
//   bit 7 sign | bits 6..3 exponent (bias 7) | bits 2..0 mantissa
//   largest 448 = 0x7e; least normal 2^-6; least subnormal 2^-9; 0x7f and 0xff are NaN
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace nibble {

inline constexpr float kE4m3Largest = 448;

// Exact.
constexpr float e4m3_to_float(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80) << 24;
  const uint32_t rest = code & 0x7f;
  if (rest == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  if (rest < 8) {
    const float magnitude = static_cast<float>(rest) * 0x1p-9f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((rest << 20) + (120u << 23)));
}

// Every code's value, for loops that decode many.
inline constexpr std::array<float, 256> kE4m3 = [] {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code) values[code] = e4m3_to_float(static_cast<uint8_t>(code));
  return values;
}();

// Rounds to nearest, ties to even; what is larger than 448 becomes 448; a NaN stays one.
constexpr uint8_t e4m3_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7f;
  if (magnitude >= std::bit_cast<uint32_t>(kE4m3Largest)) return sign | 0x7e;
  if (magnitude < std::bit_cast<uint32_t>(0x1p-6f)) {
    // Adding 2^14 leaves units of 2^-9 in the float's last place, rounded as asked.
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return sign | static_cast<uint8_t>(std::bit_cast<uint32_t>(shifted));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1);
  return sign | static_cast<uint8_t>((rounded >> 20) - (120u << 3));
}

}  // namespace nibble
