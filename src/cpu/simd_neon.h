// Vectors of 4 floats, for arm64; the other simd_*.h offer the same functions.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "cpu/simd.h"

namespace nibble::cpu {

struct Neon {
  using Vec = float32x4_t;
  static constexpr int kLanes = 4;
  // Accumulators of a matrix product tile: kTileRows x kTileTokens, in registers.
  static constexpr int kTileRows = 4;
  static constexpr int kTileTokens = 4;

  SIMD_FN Vec zero() { return vdupq_n_f32(0); }
  SIMD_FN Vec set1(float x) { return vdupq_n_f32(x); }
  SIMD_FN Vec load(const float* p) { return vld1q_f32(p); }
  SIMD_FN void store(float* p, Vec v) { vst1q_f32(p, v); }
  SIMD_FN void stream(float* p, Vec v) { store(p, v); }
  SIMD_FN void fence() {}
  SIMD_FN Vec load_bf16(const uint16_t* p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
  }
  SIMD_FN Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
  SIMD_FN Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
  SIMD_FN Vec sub(Vec a, Vec b) { return vsubq_f32(a, b); }
  SIMD_FN Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
  SIMD_FN Vec div(Vec a, Vec b) { return vdivq_f32(a, b); }
  SIMD_FN Vec min(Vec a, Vec b) { return vminq_f32(a, b); }
  SIMD_FN Vec max(Vec a, Vec b) { return vmaxq_f32(a, b); }
  SIMD_FN Vec round(Vec a) { return vrndnq_f32(a); }
  // 2^n for whole n within [-126, 127].
  SIMD_FN Vec pow2(Vec n) {
    const int32x4_t e = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
    return vreinterpretq_f32_s32(vshlq_n_s32(e, 23));
  }
  SIMD_FN float sum(Vec v) { return vaddvq_f32(v); }
  SIMD_FN float largest(Vec v) { return vmaxvq_f32(v); }

  // 2^(e - 127); 0 is 2^-127 and 255 NaN: both set the bit below the exponent.
  SIMD_FN Vec scales(const uint8_t* e) {
    uint32_t bytes;
    __builtin_memcpy(&bytes, e, sizeof(bytes));
    const uint8x8_t narrow = vreinterpret_u8_u32(vdup_n_u32(bytes));
    const uint32x4_t v = vmovl_u16(vget_low_u16(vmovl_u8(narrow)));
    const uint32x4_t near = vandq_u32(vaddq_u32(v, vdupq_n_u32(1)), vdupq_n_u32(0xfe));
    const uint32x4_t edge = vandq_u32(vceqq_u32(near, vdupq_n_u32(0)), vdupq_n_u32(0x400000));
    return vreinterpretq_f32_u32(vorrq_u32(vshlq_n_u32(v, 23), edge));
  }
  // E4M3 codes of 4 rows, in units of kE4m3Unit: as float16 the bits mean 2^-8 of it.
  static constexpr float kE4m3Unit = 256;
  SIMD_FN Vec load_e4m3(const uint8_t* p) {
    uint32_t bytes;
    __builtin_memcpy(&bytes, p, sizeof(bytes));
    const int16x4_t wide = vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(bytes))));
    const uint16x4_t bits = vand_u16(vreinterpret_u16_s16(vshl_n_s16(wide, 7)), vdup_n_u16(0xbf80));
    return vcvt_f32_f16(vreinterpret_f16_u16(bits));
  }

  // 4-bit codes of 4 rows, 8 of each in 32 bits as kPanels16 has them, in units of kE2m1Unit:
  // out[j] holds k = j.
  static constexpr float kE2m1Unit = .5f;
  SIMD_FN void load_e2m1(const uint8_t* line, Vec* out) {
    static constexpr int8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const int8x16_t table = vld1q_s8(kTwice);
    const uint8x16_t bytes = vld1q_u8(line);
    const uint8x16_t nibbles[2] = {vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8(bytes, 4)};
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const int32x4_t codes = vreinterpretq_s32_s8(vqtbl1q_s8(table, nibbles[half]));
#pragma GCC unroll 4
      for (int b = 0; b < 4; ++b)
        out[4 * half + b] =
            vcvtq_f32_s32(vshrq_n_s32(vshlq_s32(codes, vdupq_n_s32(24 - 8 * b)), 24));
    }
  }

  // The lanes 0, 2, .. of a and then of b, and the lanes 1, 3, ..
  SIMD_FN Vec even(Vec a, Vec b) { return vuzp1q_f32(a, b); }
  SIMD_FN Vec odd(Vec a, Vec b) { return vuzp2q_f32(a, b); }

  // v[i] lane j becomes v[j] lane i, for kLanes vectors.
  SIMD_FN void transpose(Vec* v) {
    const auto pairs = [](float32x4_t x) { return vreinterpretq_f64_f32(x); };
    const float64x2_t a = pairs(vtrn1q_f32(v[0], v[1])), b = pairs(vtrn2q_f32(v[0], v[1]));
    const float64x2_t c = pairs(vtrn1q_f32(v[2], v[3])), d = pairs(vtrn2q_f32(v[2], v[3]));
    v[0] = vreinterpretq_f32_f64(vtrn1q_f64(a, c)), v[2] = vreinterpretq_f32_f64(vtrn2q_f64(a, c));
    v[1] = vreinterpretq_f32_f64(vtrn1q_f64(b, d)), v[3] = vreinterpretq_f32_f64(vtrn2q_f64(b, d));
  }

  // A block of 32 MXFP4 weights: out[0..3] hold elements 0, 2, .. 30, out[4..7] 1, 3, .. 31.
  SIMD_FN void decode_block(const uint8_t* codes, float scale, Vec* out) {
    // The upper two bytes of each value's float32 (its bf16), looked up one by one.
    static constexpr uint8_t kHigh[16] = {0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                          0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};
    static constexpr uint8_t kLow[16] = {0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0,
                                         0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0};
    const uint8x16_t high = vld1q_u8(kHigh), low = vld1q_u8(kLow), bytes = vld1q_u8(codes);
    const uint8x16_t nibbles[2] = {vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8(bytes, 4)};
    for (int parity = 0; parity < 2; ++parity) {
      const uint8x16_t h = vqtbl1q_u8(high, nibbles[parity]), l = vqtbl1q_u8(low, nibbles[parity]);
      const uint16x8_t bf16[2] = {vreinterpretq_u16_u8(vzip1q_u8(l, h)),
                                  vreinterpretq_u16_u8(vzip2q_u8(l, h))};
      for (int i = 0; i < 4; ++i) {
        const uint16x4_t four = i % 2 ? vget_high_u16(bf16[i / 2]) : vget_low_u16(bf16[i / 2]);
        out[4 * parity + i] = vmulq_n_f32(vreinterpretq_f32_u32(vshll_n_u16(four, 16)), scale);
      }
    }
  }
};

}  // namespace nibble::cpu
