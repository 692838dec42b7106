// int8 activations: values that share one float32 step, each a whole number of steps within
// [-127, 127]. A group is a block of 32 consecutive values, or a whole row.
//
//   step = largest magnitude / 127;  q = x * (127 / largest magnitude), rounded to nearest, ties to
//   even; both in float32
//   largest magnitude below 2^-100: the group counts as zeros (step 0)
//   an infinity or a NaN in it: step is NaN, so that every product shows it; q is 0
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace nibble {

inline constexpr int kInt8BlockElems = 32;

struct Int8Step {
  float step;
  float inverse;  // what values are multiplied by; 0 where q is 0
};

// `largest_bits`: the greatest of the values' bits without their signs, as whole numbers. That
// order is the order of magnitudes, with infinity and NaN on top.
constexpr Int8Step int8_step(uint32_t largest_bits) {
  constexpr uint32_t kLeast = std::bit_cast<uint32_t>(0x1p-100f), kInfinity = 0x7f800000u;
  if (largest_bits >= kInfinity) return {std::numeric_limits<float>::quiet_NaN(), 0};
  if (largest_bits < kLeast) return {0, 0};
  const auto largest = std::bit_cast<float>(largest_bits);
  return {largest / 127, 127 / largest};
}

// The twin: codes of x[0..n), and their step.
inline float int8_encode(const float* x, int64_t n, int8_t* q) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  const Int8Step s = int8_step(largest);
  for (int64_t i = 0; i < n; ++i)
    q[i] = s.inverse == 0 ? 0 : static_cast<int8_t>(std::nearbyint(x[i] * s.inverse));
  return s.step;
}

}  // namespace nibble
