// Bytes in vectors of 4 x 4, for products of MXFP4 codes. Include only in files compiled for arm64
// with dot products; the other simd_int8_*.h offer the same functions.
#pragma once

#include "cpu/simd_neon.h"

namespace nibble::cpu {

struct NeonDot : Neon {
  using Int = int32x4_t;
  static constexpr int kMostTokens = 8;
  static constexpr int kCodeOffset = 0;  // SDOT takes signed codes: 2 e2m1

  SIMD_FN void decode(const uint8_t* line, Int& low, Int& high) {
    static constexpr int8_t kCodes[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const int8x16_t table = vld1q_s8(kCodes);
    const uint8x16_t bytes = vld1q_u8(line);
    low = vreinterpretq_s32_s8(vqtbl1q_s8(table, vandq_u8(bytes, vdupq_n_u8(15))));
    high = vreinterpretq_s32_s8(vqtbl1q_s8(table, vshrq_n_u8(bytes, 4)));
  }
  SIMD_FN void nibbles(const uint8_t* line, Int& low, Int& high) {
    const uint8x16_t bytes = vld1q_u8(line);
    low = vreinterpretq_s32_u8(vandq_u8(bytes, vdupq_n_u8(15)));
    high = vreinterpretq_s32_u8(vshrq_n_u8(bytes, 4));
  }
  SIMD_FN void load_int4_groups(const uint8_t* at, Vec& scale, Vec& zero) {
    const uint32x4_t groups = vreinterpretq_u32_u8(vld1q_u8(at));
    const uint32x4_t is_f16 = vtstq_u32(groups, vdupq_n_u32(0xff000000u));
    const Vec as_f16 = vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(groups)));
    scale = vbslq_f32(is_f16, as_f16, vreinterpretq_f32_u32(vshlq_n_u32(groups, 16)));
    zero = vcvtq_f32_u32(vandq_u32(vshrq_n_u32(groups, 16), vdupq_n_u32(255)));
  }
  // sums[j] = w . x[j] for N vectors of 4 kLines, 32 apart.
  template <int N, int kLines>
  SIMD_FN void dot(const Int* w, const int8_t* x, const int32_t*, Int* sums) {
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) sums[j] = dot_one<kLines>(w, x + 32 * j);
  }
  template <int kLines>
  SIMD_FN Int dot_one(const Int* w, const int8_t* x) {
    const int8x16_t a = vld1q_s8(x);
    const auto codes = [&](int i) { return vreinterpretq_s8_s32(w[i]); };
    Int sum = vdotq_laneq_s32(vdupq_n_s32(0), codes(0), a, 0);
    sum = vdotq_laneq_s32(sum, codes(1), a, 1);
    sum = vdotq_laneq_s32(sum, codes(2), a, 2);
    sum = vdotq_laneq_s32(sum, codes(3), a, 3);
    if constexpr (kLines == 4) return sum;
    const int8x16_t b = vld1q_s8(x + 16);
    sum = vdotq_laneq_s32(sum, codes(4), b, 0);
    sum = vdotq_laneq_s32(sum, codes(5), b, 1);
    sum = vdotq_laneq_s32(sum, codes(6), b, 2);
    return vdotq_laneq_s32(sum, codes(7), b, 3);
  }
  SIMD_FN Vec to_float(Int v) { return vcvtq_f32_s32(v); }
};

}  // namespace nibble::cpu
