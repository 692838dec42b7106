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

  static constexpr int32_t kLeastNormal = std::bit_cast<int32_t>(0x1p-6f);

  // Ties to even: below 2^-6 to a multiple of 2^-9, from there to three bits of mantissa.
  static int32_t nearest(int32_t bits) {
    const float low = (std::bit_cast<float>(bits) + 0x1p14f) - 0x1p14f;
    const int32_t rounded = (bits + 0x7ffff + (bits >> 20 & 1)) & ~0xfffff;
    return internal::select_negative(bits - kLeastNormal, std::bit_cast<int32_t>(low), rounded);
  }
  static int32_t code(int32_t bits) {
    const auto units = static_cast<int32_t>(0x1p9f * std::bit_cast<float>(bits));
    return internal::select_negative(bits - kLeastNormal, units, (bits >> 20) - (120 << 3));
  }
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
  int32_t codes[kMxfp8BlockElems];
  Mxfp8Block block;
  block.scale = internal::mx_encode<E4m3>(values, codes);
  for (int i = 0; i < kMxfp8BlockElems; ++i)
    block.codes.bytes[i] = static_cast<uint8_t>(static_cast<uint32_t>(codes[i]) |
                                                std::bit_cast<uint32_t>(values[i]) >> 31 << 7);
  return block;
}

}  // namespace nibble
