#include "formats/mxfp4.h"

#include "formats/mx_search.h"

namespace nibble {
namespace {

struct E2m1 {
  // With the largest in [2^e, 2^(e+1)): a step of 2^(e-1) reaches 3 * 2^e, and within reach its
  // values contain those of any coarser step. 2^(e-2) and 2^(e-3) clip the largest and can win on
  // the rest. From 2^(e-4) on, what clipping adds (over 0.32 * 4^e) is more than 31 values can gain
  // (0.12 * 4^e).
  static constexpr int kFirst = -3, kLast = -1;

  // Ties to the even code: below 1 to a multiple of a half, from there to one bit of mantissa.
  static float nearest(float t) {
    const float low = (t + 0x1p22f) - 0x1p22f;
    const uint32_t bits = std::bit_cast<uint32_t>(t);
    const uint32_t rounded = (bits + 0x1fffffu + (bits >> 22 & 1)) & 0xffc00000u;
    return std::min(t < 1 ? low : std::bit_cast<float>(rounded), 6.f);
  }
  static uint8_t code(float v) {
    const uint32_t bits = std::bit_cast<uint32_t>(v);
    return static_cast<uint8_t>(v < 1 ? static_cast<uint32_t>(2 * v) : (bits >> 22) - 252);
  }
  static float largest_at(int scale) { return scale <= 252 ? 6.f : scale == 253 ? 3.f : 1.5f; }
};

}  // namespace

void mxfp4_decode(const Mxfp4Codes& codes, uint8_t scale, float* out) {
  const float step = e8m0_to_float(scale);
  for (int i = 0; i < kMxfp4BlockElems; ++i)
    out[i] = kE2m1[(codes.bytes[i / 2] >> (4 * (i % 2))) & 15] * step;
}

Mxfp4Block mxfp4_encode(const float* values) {
  Mxfp4Block block{};
  block.scale = internal::mx_encode<E2m1>(values, [&](int i, uint8_t code, bool negative) {
    const int nibble = code | (negative ? 8 : 0);
    block.codes.bytes[i / 2] |= static_cast<uint8_t>(nibble << (4 * (i % 2)));
  });
  return block;
}

}  // namespace nibble
