// Bytes in vectors of 16 x 4, for products of MXFP4 codes. Include only in files compiled for
// AVX-512 with VNNI and VBMI; the other simd_int8_*.h offer the same functions.
#pragma once

#include "cpu/simd_avx512.h"

namespace nibble::cpu {

struct Avx512Vnni : Avx512 {
  using Int = __m512i;
  static constexpr int kMostTokens = 16;
  static constexpr int kCodeOffset = 12;  // codes are looked up as 2 e2m1 + 12, unsigned

  SIMD_FN void decode(const uint8_t* line, Int& low, Int& high) {
    // vpermb looks at the low 6 bits of each byte: the table repeats, so that nothing is masked.
    const Int table = _mm512_broadcast_i32x4(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const Int bytes = _mm512_loadu_si512(line);
    low = _mm512_permutexvar_epi8(bytes, table);
    high = _mm512_permutexvar_epi8(_mm512_srli_epi16(bytes, 4), table);
  }
  SIMD_FN void nibbles(const uint8_t* line, Int& low, Int& high) {
    const Int bytes = _mm512_loadu_si512(line), mask = _mm512_set1_epi8(15);
    low = _mm512_and_si512(bytes, mask);
    high = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask);
  }
  SIMD_FN void load_int4_groups(const uint8_t* at, Vec& scale, Vec& zero) {
    const Int groups = _mm512_loadu_si512(at);
    const __mmask16 is_f16 = _mm512_test_epi32_mask(groups, _mm512_set1_epi32(0xff000000));
    scale = _mm512_mask_cvtph_ps(_mm512_castsi512_ps(_mm512_slli_epi32(groups, 16)), is_f16,
                                 _mm512_cvtepi32_epi16(groups));
    zero =
        _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(groups, 16), _mm512_set1_epi32(255)));
  }
  // sums[j] = start[j] + w . x[j] for N vectors of 4 kLines, 32 apart, side by side: the products
  // of one wait for each other. As assembly, for g++ 12 loads the four bytes of each product by an
  // instruction of its own, where clang folds them into it: on a Xeon that was a third of the
  // speed.
  struct FourBytes {
    int8_t at[4];
  };
  template <int N, int kLines>
  SIMD_FN void dot(const Int* w, const int8_t* x, const int32_t* start, Int* sums) {
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) sums[j] = _mm512_set1_epi32(start[j]);
#pragma GCC unroll 8
    for (int i = 0; i < kLines; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) {
        const auto* four = reinterpret_cast<const FourBytes*>(x + 32 * j + 4 * i);
        asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums[j]) : "v"(w[i]), "m"(*four));
      }
  }
  SIMD_FN Vec to_float(Int v) { return _mm512_cvtepi32_ps(v); }
};

}  // namespace nibble::cpu
