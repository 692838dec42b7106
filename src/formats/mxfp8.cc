#include "formats/mxfp8.h"

#include "formats/fp8.h"
#include "formats/mx_search.h"
#include "formats/mxfp4.h"

namespace nibble {
namespace {

struct E4m3 {
  // With the largest in [2^e, 2^(e+1)): a step of 2^(e-7) reaches it; 2^(e-8) clips what is over
  // 1.75 * 2^e and has subnormals half as wide; within reach both have the same other values. From
  // 2^(e-9) on, clipping adds more (over 4^(e-3)) than subnormals can gain.
  static constexpr int kFirst = -8, kLast = -7;

  // Ties to even: below 2^-6 to a multiple of 2^-9, from there to three bits of mantissa.
  static float nearest(float t) {
    const float low = (t + 0x1p14f) - 0x1p14f;
    const uint32_t bits = std::bit_cast<uint32_t>(t);
    const uint32_t rounded = (bits + 0x7ffffu + (bits >> 20 & 1)) & 0xfff00000u;
    return std::min(t < 0x1p-6f ? low : std::bit_cast<float>(rounded), kE4m3Largest);
  }
  static uint8_t code(float v) { return e4m3_from_float(v); }
  // 448 * 2^(246 - 127) is 1.75 * 2^127. The largest float32 is near 2^128, so no scale over 248.
  static float largest_at(int scale) {
    return scale <= 246 ? kE4m3Largest : std::ldexp(1.875f, 254 - scale);
  }
};

}  // namespace

void mxfp8_decode(const Mxfp8Codes& codes, uint8_t scale, float* out) {
  const float step = e8m0_to_float(scale);
  for (int i = 0; i < kMxfp8BlockElems; ++i) out[i] = e4m3_to_float(codes.bytes[i]) * step;
}

Mxfp8Block mxfp8_encode(const float* values) {
  Mxfp8Block block{};
  block.scale = internal::mx_encode<E4m3>(values, [&](int i, uint8_t code, bool negative) {
    block.codes.bytes[i] = static_cast<uint8_t>(code | (negative ? 0x80 : 0));
  });
  return block;
}

}  // namespace nibble
