#include "formats/nvfp4.h"

#include <algorithm>
#include <cmath>

#include "formats/fp8.h"
#include "formats/mxfp4.h"

namespace nibble {

void nvfp4_decode(const Nvfp4Codes& codes, uint8_t scale, float row_scale, float* out) {
  const float step = e4m3_to_float(scale) * row_scale;
  for (int b = 0; b < kNvfp4BlockElems / 2; ++b) {
    out[2 * b] = kE2m1[codes.bytes[b] & 15] * step;
    out[2 * b + 1] = kE2m1[codes.bytes[b] >> 4] * step;
  }
}

float nvfp4_row_scale(float largest) {
  const float g = largest / (6 * kE4m3Largest);
  return g > 0 ? g : 1;
}

Nvfp4Block nvfp4_encode(const float* values, float row_scale) {
  float largest = 0;
  for (int i = 0; i < kNvfp4BlockElems; ++i) largest = std::max(largest, std::fabs(values[i]));
  Nvfp4Block best{};
  if (largest == 0) return best;
  const int first = e4m3_from_float(largest / 16 / row_scale);
  const int last = e4m3_from_float(largest / 3 / row_scale);
  double least = INFINITY;
  for (int scale = first; scale <= last; ++scale) {
    const float step = e4m3_to_float(static_cast<uint8_t>(scale)) * row_scale;
    Nvfp4Block block{.codes = {}, .scale = static_cast<uint8_t>(scale)};
    double error = 0;
    for (int i = 0; i < kNvfp4BlockElems; ++i) {
      const float magnitude = std::fabs(values[i]);
      const uint8_t code = step > 0 ? e2m1_from_float(magnitude / step) : 0;
      const double off = double{magnitude} - kE2m1[code] * step;
      error += off * off;
      const int sign = std::signbit(values[i]) ? 8 : 0;
      block.codes.bytes[i / 2] |= static_cast<uint8_t>((code | sign) << (i % 2 * 4));
    }
    if (error < least) least = error, best = block;
  }
  return best;
}

}  // namespace nibble
