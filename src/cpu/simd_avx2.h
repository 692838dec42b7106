// Vectors of 8 floats. Include only in files compiled for AVX2 and FMA (see
// ops/cpu_matmul/float_kernels_avx2.cc); the other simd_*.h offer the same functions.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/simd.h"
#include "formats/mxfp4.h"

namespace nibble::cpu {

struct Avx2 {
  using Vec = __m256;
  static constexpr int kLanes = 8;
  // Accumulators of a matrix product tile: kTileRows x kTileTokens, in registers.
  static constexpr int kTileRows = 3;
  static constexpr int kTileTokens = 4;

  SIMD_FN Vec zero() { return _mm256_setzero_ps(); }
  SIMD_FN Vec set1(float x) { return _mm256_set1_ps(x); }
  SIMD_FN Vec load(const float* p) { return _mm256_loadu_ps(p); }
  SIMD_FN void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
  // Past the caches; p lies at a multiple of a vector. fence() comes before others read it.
  SIMD_FN void stream(float* p, Vec v) { _mm256_stream_ps(p, v); }
  SIMD_FN void fence() { _mm_sfence(); }
  SIMD_FN Vec load_bf16(const uint16_t* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  SIMD_FN Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  SIMD_FN Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  SIMD_FN Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
  SIMD_FN Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  SIMD_FN Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
  SIMD_FN Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
  SIMD_FN Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
  SIMD_FN Vec round(Vec a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  // 2^n for whole n within [-126, 127].
  SIMD_FN Vec pow2(Vec n) {
    const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
  }
  SIMD_FN float sum(Vec v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  SIMD_FN float largest(Vec v) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }

  // 2^(e - 127); 0 is 2^-127 and 255 NaN: both set the bit below the exponent.
  SIMD_FN Vec scales(const uint8_t* e) {
    const __m256i v = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(e)));
    const __m256i near =
        _mm256_and_si256(_mm256_add_epi32(v, _mm256_set1_epi32(1)), _mm256_set1_epi32(0xfe));
    const __m256i edge = _mm256_and_si256(_mm256_cmpeq_epi32(near, _mm256_setzero_si256()),
                                          _mm256_set1_epi32(0x400000));
    return _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(v, 23), edge));
  }
  // E4M3 codes of 8 rows, in units of kE4m3Unit: as float16 the bits mean 2^-8 of it. Needs F16C.
  static constexpr float kE4m3Unit = 256;
  SIMD_FN Vec load_e4m3(const uint8_t* p) {
    const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return _mm256_cvtph_ps(
        _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(static_cast<short>(0xbf80))));
  }

  // 4-bit codes of 8 rows, 8 of each in 32 bits as kPanels16 has them, in units of kE2m1Unit:
  // out[j] holds k = j.
  static constexpr float kE2m1Unit = 1;
  SIMD_FN void load_e2m1(const uint8_t* line, Vec* out) {
    const Vec table = load(kE2m1);
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line));
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
      out[b] = signed_value(table, _mm256_srli_epi32(codes, 8 * b));
      out[4 + b] = signed_value(table, _mm256_srli_epi32(codes, 8 * b + 4));
    }
  }

  // The lanes 0, 2, .. of a and then of b, and the lanes 1, 3, ..
  SIMD_FN Vec even(Vec a, Vec b) { return in_order(_mm256_shuffle_ps(a, b, 0x88)); }
  SIMD_FN Vec odd(Vec a, Vec b) { return in_order(_mm256_shuffle_ps(a, b, 0xdd)); }
  // Pairs of lanes of a, b, a, b to a, a, b, b.
  SIMD_FN Vec in_order(Vec v) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8));
  }

  // v[i] lane j becomes v[j] lane i, for kLanes vectors.
  SIMD_FN void transpose(Vec* v) {
    // Pairs of rows, then pairs of pairs, within halves of 4 lanes; then the halves.
    Vec t[8];
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
      const Vec a = _mm256_unpacklo_ps(v[i], v[i + 1]), b = _mm256_unpackhi_ps(v[i], v[i + 1]);
      const Vec c = _mm256_unpacklo_ps(v[i + 2], v[i + 3]);
      const Vec d = _mm256_unpackhi_ps(v[i + 2], v[i + 3]);
      t[i] = _mm256_shuffle_ps(a, c, 0x44), t[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
      t[i + 2] = _mm256_shuffle_ps(b, d, 0x44), t[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
      v[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
    }
  }

  // A block of 32 MXFP4 weights: out[0], out[1] hold elements 0, 2, .. 30, out[2], out[3] elements
  // 1, 3, .. 31.
  SIMD_FN void decode_block(const uint8_t* codes, float scale, Vec* out) {
    // vpermps takes the low 3 bits of each lane: the magnitudes. Bit 3 becomes the sign.
    const Vec table = mul(load(kE2m1), set1(scale));
    for (int half = 0; half < 2; ++half) {
      const __m256i low =
          _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + 8 * half)));
      const __m256i high = _mm256_srli_epi32(low, 4);
      out[half] = signed_value(table, low);
      out[half + 2] = signed_value(table, high);
    }
  }

 private:
  SIMD_FN Vec signed_value(Vec table, __m256i nibbles) {
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(nibbles, 28),
                                          _mm256_set1_epi32(static_cast<int>(0x80000000u)));
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(table, nibbles), _mm256_castsi256_ps(sign));
  }
};

}  // namespace nibble::cpu
