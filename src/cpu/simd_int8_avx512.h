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
  SIMD_FN Int dot(const Int* w, const int8_t* x, int32_t start) {
    Int sum = _mm512_set1_epi32(start);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      int32_t four;
      __builtin_memcpy(&four, x + 4 * i, sizeof(four));
      sum = _mm512_dpbusd_epi32(sum, w[i], _mm512_set1_epi32(four));
    }
    return sum;
  }
  SIMD_FN Vec to_float(Int v) { return _mm512_cvtepi32_ps(v); }
};

}  // namespace nibble::cpu
