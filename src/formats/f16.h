// IEEE 754 binary16: bit 15 sign | bits 14..10 exponent (bias 15) | bits 9..0 mantissa.
#pragma once

#include <bit>
#include <cstdint>

namespace nibble {

// Exact; infinities and NaNs stay what they are.
constexpr float f16_to_float(uint16_t bits) {
  const uint32_t sign = uint32_t{bits} >> 15 << 31, rest = bits & 0x7fffu;
  if (rest >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000u | (rest & 0x3ff) << 13);
  if (rest < 0x400) {
    const float magnitude = static_cast<float>(rest) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((rest << 13) + (112u << 23)));
}

}  // namespace nibble
