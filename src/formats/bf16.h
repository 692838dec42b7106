// bfloat16: the upper half of a float32.
//
//   bit 15 sign | bits 14..7 exponent (bias 127) | bits 6..0 mantissa
#pragma once

#include <bit>
#include <cstdint>

namespace nibble {

constexpr float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Rounds to nearest, ties to even; overflow gives infinity; a NaN stays a (quiet) NaN.
constexpr uint16_t bf16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace nibble
