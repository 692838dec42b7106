#include "formats/mxfp4.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace nibble {
namespace {

// Nearest code to a magnitude, ties to the even code: the thresholds are the midpoints of the
// table.
int nearest_code(double magnitude) {
  constexpr double kMid[7] = {.25, .75, 1.25, 1.75, 2.5, 3.5, 5};
  int code = 0;
  while (code < 7 && (magnitude > kMid[code] || (magnitude == kMid[code] && code % 2 == 1))) ++code;
  return code;
}

// Squared error of the block under 2^(scale - 127); fills codes.
double encode_with(const float* values, int scale, Mxfp4Codes& codes) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  const double step = std::ldexp(1.0, scale - 127);
  double error = 0;
  codes = {};
  for (int i = 0; i < kMxfp4BlockElems; ++i) {
    int code = nearest_code(std::fabs(values[i]) / step);
    while (static_cast<double>(kE2m1[code]) * step > kLargest) --code;  // would decode as infinite
    const double off = std::fabs(values[i]) - static_cast<double>(kE2m1[code]) * step;
    error += off * off;
    const int nibble = code | (std::signbit(values[i]) ? 8 : 0);
    codes.bytes[i / 2] |= static_cast<uint8_t>(nibble << (4 * (i % 2)));
  }
  return error;
}

}  // namespace

void mxfp4_decode(const Mxfp4Codes& codes, uint8_t scale, float* out) {
  const float step = e8m0_to_float(scale);
  for (int i = 0; i < kMxfp4BlockElems; ++i)
    out[i] = kE2m1[(codes.bytes[i / 2] >> (4 * (i % 2))) & 15] * step;
}

Mxfp4Block mxfp4_encode(const float* values) {
  float largest = 0;
  for (int i = 0; i < kMxfp4BlockElems; ++i) largest = std::max(largest, std::fabs(values[i]));
  Mxfp4Block best{{}, 0};
  if (largest == 0) {
    encode_with(values, 0, best.codes);
    return best;
  }
  // With largest in [2^e, 2^(e+1)): a step of 2^(e-1) reaches 3 * 2^e, and within reach its values
  // contain those of any coarser step. 2^(e-2) and 2^(e-3) clip the largest and can win on the
  // rest. From 2^(e-4) on, what clipping adds (over 0.32 * 4^e) is more than 31 values can gain
  // (0.12 * 4^e).
  const int exponent = std::ilogb(largest);
  double best_error = std::numeric_limits<double>::infinity();
  for (int e = exponent - 3; e <= exponent - 1; ++e) {
    const int scale = std::clamp(e + 127, 0, 254);
    Mxfp4Codes codes;
    const double error = encode_with(values, scale, codes);
    if (error < best_error) best_error = error, best = {codes, static_cast<uint8_t>(scale)};
  }
  return best;
}

}  // namespace nibble
