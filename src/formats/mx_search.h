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

// 2^exponent times each |value|, also where 2^exponent is no float32 itself.
inline void scale_magnitudes(const float* values, int exponent, float* out) {
  const int half = exponent / 2;
  const float first = std::ldexp(1.f, half), second = std::ldexp(1.f, exponent - half);
  for (int i = 0; i < kMxBlock; ++i) out[i] = std::fabs(values[i]) * first * second;
}

// Element: kFirst, kLast, the candidate scales as powers of two over the largest magnitude's;
// nearest(t) for t >= 0, clipped; code(v) of such a value; largest_at(scale), what decodes to a
// finite float32. Calls store(i, code) for each element and returns the scale.
template <typename Element, typename Store>
uint8_t mx_encode(const float* values, Store store) {
  float largest = 0;
  for (int i = 0; i < kMxBlock; ++i) largest = std::max(largest, std::fabs(values[i]));
  const int exponent = largest == 0 ? -127 : std::ilogb(largest);
  float unit[kMxBlock], nearest[kMxBlock], best[kMxBlock] = {};
  scale_magnitudes(values, -exponent, unit);
  double least = std::numeric_limits<double>::infinity();
  int best_scale = 0;
  for (int step = Element::kFirst; step <= Element::kLast; ++step) {
    const int scale = std::clamp(exponent + step + 127, 0, 254);
    const int up = exponent + 127 - scale;
    const float by = std::ldexp(1.f, up), limit = Element::largest_at(scale);
    double error[4] = {};
    for (int i = 0; i < kMxBlock; ++i) nearest[i] = std::min(Element::nearest(unit[i] * by), limit);
    for (int i = 0; i < kMxBlock; i += 4)
      for (int j = 0; j < 4; ++j) {
        const double off = unit[i + j] * by - nearest[i + j];
        error[j] += off * off;
      }
    const double all = std::ldexp((error[0] + error[1]) + (error[2] + error[3]), -2 * up);
    if (all >= least) continue;
    least = all, best_scale = scale;
    std::copy_n(nearest, kMxBlock, best);
  }
  for (int i = 0; i < kMxBlock; ++i) store(i, Element::code(best[i]), std::signbit(values[i]));
  return static_cast<uint8_t>(best_scale);
}

}  // namespace nibble::internal
