// Vectors of 16 floats. Include only in files compiled for AVX-512 F, BW, VL and DQ (see
// ops/cpu_matmul/float_kernels_avx512.cc); the other simd_*.h offer the same functions.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/simd.h"
#include "formats/mxfp4.h"

namespace nibble::cpu {

struct Avx512 {
  using Vec = __m512;
  static constexpr int kLanes = 16;
  // Accumulators of a matrix product tile: kTileRows x kTileTokens, in registers.
  static constexpr int kTileRows = 4;
  static constexpr int kTileTokens = 4;

  SIMD_FN Vec zero() { return _mm512_setzero_ps(); }
  SIMD_FN Vec set1(float x) { return _mm512_set1_ps(x); }
  SIMD_FN Vec load(const float* p) { return _mm512_loadu_ps(p); }
  SIMD_FN void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
  // Past the caches; p lies at a multiple of a vector. fence() comes before others read it.
  SIMD_FN void stream(float* p, Vec v) { _mm512_stream_ps(p, v); }
  SIMD_FN void fence() { _mm_sfence(); }
  SIMD_FN Vec load_bf16(const uint16_t* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  SIMD_FN Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  SIMD_FN Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  SIMD_FN Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
  SIMD_FN Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  SIMD_FN Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
  SIMD_FN Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
  SIMD_FN Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  SIMD_FN Vec round(Vec a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT); }
  // 2^n for whole n within [-126, 127].
  SIMD_FN Vec pow2(Vec n) {
    const __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(e, 23));
  }
  SIMD_FN float sum(Vec v) { return _mm512_reduce_add_ps(v); }
  SIMD_FN float largest(Vec v) { return _mm512_reduce_max_ps(v); }

  // 2^(e - 127); 0 is 2^-127 and 255 NaN: both set the bit below the exponent.
  SIMD_FN Vec scales(const uint8_t* e) {
    const __m512i v = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(e)));
    const __mmask16 edge =
        _mm512_testn_epi32_mask(_mm512_add_epi32(v, _mm512_set1_epi32(1)), _mm512_set1_epi32(0xfe));
    const __m512i bits = _mm512_slli_epi32(v, 23);
    return _mm512_castsi512_ps(_mm512_mask_or_epi32(bits, edge, bits, _mm512_set1_epi32(0x400000)));
  }
  // E4M3 codes of 16 rows, in units of kE4m3Unit: as float16 the bits mean 2^-8 of it.
  static constexpr float kE4m3Unit = 256;
  SIMD_FN Vec load_e4m3(const uint8_t* p) {
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(wide, 7),
                                            _mm256_set1_epi16(static_cast<short>(0xbf80))));
  }

  // 4-bit codes of 16 rows, 8 of each in 32 bits as kPanels16 has them, in units of kE2m1Unit:
  // out[j] holds k = j.
  static constexpr float kE2m1Unit = 1;
  SIMD_FN void load_e2m1(const uint8_t* line, Vec* out) {
    const Vec table = load(kE2m1);  // vpermps takes the low 4 bits of each lane
    const __m512i codes = _mm512_loadu_si512(line);
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
      out[b] = _mm512_permutexvar_ps(_mm512_srli_epi32(codes, 8 * b), table);
      out[4 + b] = _mm512_permutexvar_ps(_mm512_srli_epi32(codes, 8 * b + 4), table);
    }
  }

  // The lanes 0, 2, .. of a and then of b, and the lanes 1, 3, ..
  SIMD_FN Vec even(Vec a, Vec b) {
    return _mm512_permutex2var_ps(
        a, _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), b);
  }
  SIMD_FN Vec odd(Vec a, Vec b) {
    return _mm512_permutex2var_ps(
        a, _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31), b);
  }

  // v[i] lane j becomes v[j] lane i, for kLanes vectors.
  SIMD_FN void transpose(Vec* v) {
    // Pairs of rows, then pairs of pairs, within quarters of 4 lanes; then the quarters.
    Vec t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 4) {
      const Vec a = _mm512_unpacklo_ps(v[i], v[i + 1]), b = _mm512_unpackhi_ps(v[i], v[i + 1]);
      const Vec c = _mm512_unpacklo_ps(v[i + 2], v[i + 3]);
      const Vec d = _mm512_unpackhi_ps(v[i + 2], v[i + 3]);
      t[i] = _mm512_shuffle_ps(a, c, 0x44), t[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
      t[i + 2] = _mm512_shuffle_ps(b, d, 0x44), t[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const Vec a = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88);
      const Vec b = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88);
      const Vec c = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xdd);
      const Vec d = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xdd);
      v[i] = _mm512_shuffle_f32x4(a, b, 0x88), v[i + 8] = _mm512_shuffle_f32x4(a, b, 0xdd);
      v[i + 4] = _mm512_shuffle_f32x4(c, d, 0x88), v[i + 12] = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
  }

  // A block of 32 MXFP4 weights: out[0] holds elements 0, 2, .. 30, out[1] elements 1, 3, .. 31.
  SIMD_FN void decode_block(const uint8_t* codes, float scale, Vec* out) {
    // vpermps takes the low 4 bits of each lane: the table is looked up without masking.
    const Vec table = mul(load(kE2m1), set1(scale));
    const __m512i bytes =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    out[0] = _mm512_permutexvar_ps(bytes, table);
    out[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), table);
  }
};

}  // namespace nibble::cpu
