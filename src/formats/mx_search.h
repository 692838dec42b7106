// The search for the block scale of least squared error, shared by the MX formats' encoders.
//
// A block is divided by the power of two of its largest magnitude, 2^e; what is left lies in
// [-2, 2). Each candidate scale is then one exact multiplication, and rounding to the nearest
// element is branchless, so that the loops below become vector code. Differences between a value
// and its rounding are exact in float32; their squares are added in double, in one fixed order.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace nibble::internal {

inline constexpr int kMxBlock = 32;

inline float power_of_two(int exponent) {
  if (exponent < -126 || exponent > 127) return std::ldexp(1.f, exponent);
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

// 2^exponent times each |value|, also where 2^exponent is no float32 itself.
inline void scale_magnitudes(const float* values, int exponent, float* out) {
  const int half = exponent / 2;
  const float first = power_of_two(half), second = power_of_two(exponent - half);
  for (int i = 0; i < kMxBlock; ++i) out[i] = std::fabs(values[i]) * first * second;
}

inline float largest_magnitude(const float* values) {
  int32_t largest = 0;  // bits of floats that are not negative are ordered as they are
  for (int i = 0; i < kMxBlock; ++i)
    largest = std::max(largest, std::bit_cast<int32_t>(values[i]) & 0x7fffffff);
  return std::bit_cast<float>(largest);
}

// Sum of the squares of what lies between scaled values and their rounding.
inline double squared_distance(const float* unit, float by, const float* nearest) {
  float off[kMxBlock];
  for (int i = 0; i < kMxBlock; ++i) off[i] = unit[i] * by - nearest[i];
  double sum[4] = {};
  for (int i = 0; i < kMxBlock; i += 4)
    for (int j = 0; j < 4; ++j) sum[j] += static_cast<double>(off[i + j]) * off[i + j];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// `a` where condition < 0, else `b`, without a branch.
inline int32_t select_negative(int32_t condition, int32_t a, int32_t b) {
  const int32_t mask = condition >> 31;
  return (a & mask) | (b & ~mask);
}

// Element: kFirst, kLast, the candidate scales as powers of two over the largest magnitude's. The
// others take and give bits of floats >= 0: nearest(t); code(v) of such a value; largest_at(scale),
// the largest that decodes to a finite float32. codes[i] gets the code of |values[i]|; returns the
// scale.
template <typename Element>
uint8_t mx_encode(const float* values, int32_t* codes) {
  const float largest = largest_magnitude(values);
  const int exponent = largest == 0 ? -127 : std::ilogb(largest);
  float unit[kMxBlock], nearest[kMxBlock], best[kMxBlock] = {};
  scale_magnitudes(values, -exponent, unit);
  double least = std::numeric_limits<double>::infinity();
  int best_scale = 0;
  for (int step = Element::kFirst; step <= Element::kLast; ++step) {
    const int scale = std::clamp(exponent + step + 127, 0, 254);
    const int up = exponent + 127 - scale;
    const float by = power_of_two(up);
    const auto limit = std::bit_cast<int32_t>(Element::largest_at(scale));
    for (int i = 0; i < kMxBlock; ++i) {
      const int32_t near = Element::nearest(std::bit_cast<int32_t>(unit[i] * by));
      nearest[i] = std::bit_cast<float>(select_negative(near - limit, near, limit));
    }
    const double back = power_of_two(-up);
    const double error = squared_distance(unit, by, nearest) * back * back;
    if (error >= least) continue;
    least = error, best_scale = scale;
    std::copy_n(nearest, kMxBlock, best);
  }
  for (int i = 0; i < kMxBlock; ++i) codes[i] = Element::code(std::bit_cast<int32_t>(best[i]));
  return static_cast<uint8_t>(best_scale);
}

}  // namespace nibble::internal
