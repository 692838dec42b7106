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

  static constexpr int32_t kOne = std::bit_cast<int32_t>(1.f);

  // Ties to the even code: below 1 to a multiple of a half, from there to one bit of mantissa.
  static int32_t nearest(int32_t bits) {
    const float low = (std::bit_cast<float>(bits) + 0x1p22f) - 0x1p22f;
    const int32_t rounded = (bits + 0x1fffff + (bits >> 22 & 1)) & ~0x3fffff;
    return internal::select_negative(bits - kOne, std::bit_cast<int32_t>(low), rounded);
  }
  static int32_t code(int32_t bits) {
    const auto halves = static_cast<int32_t>(2 * std::bit_cast<float>(bits));
    return internal::select_negative(bits - kOne, halves, (bits >> 22) - 252);
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
  int32_t codes[kMxfp4BlockElems];
  Mxfp4Block block;
  block.scale = internal::mx_encode<E2m1>(values, codes);
  for (int i = 0; i < kMxfp4BlockElems; ++i)
    codes[i] |= static_cast<int32_t>(std::bit_cast<uint32_t>(values[i]) >> 31 << 3);
  for (int i = 0; i < kMxfp4BlockElems / 2; ++i)
    block.codes.bytes[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
  return block;
}

}  // namespace nibble
