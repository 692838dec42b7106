// Bytes in vectors of 8 x 4, for products of MXFP4 codes. Include only in files compiled for AVX2
// and FMA, and AVX-VNNI where kVnni; the other simd_int8_*.h offer the same functions.
#pragma once

#include "cpu/simd_avx2.h"

namespace nibble::cpu {

template <bool kVnni>
struct Avx2Int8 : Avx2 {
  using Int = __m256i;
  static constexpr int kMostTokens = 4;
  static constexpr int kCodeOffset = 12;  // codes are looked up as 2 e2m1 + 12, unsigned

  SIMD_FN void decode(const uint8_t* line, Int& low, Int& high) {
    const Int table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const Int mask = _mm256_set1_epi8(15);
    const Int bytes = _mm256_loadu_si256(reinterpret_cast<const Int*>(line));
    low = _mm256_shuffle_epi8(table, _mm256_and_si256(bytes, mask));
    high = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask));
  }
  SIMD_FN void nibbles(const uint8_t* line, Int& low, Int& high) {
    const Int bytes = _mm256_loadu_si256(reinterpret_cast<const Int*>(line));
    const Int mask = _mm256_set1_epi8(15);
    low = _mm256_and_si256(bytes, mask);
    high = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask);
  }
  SIMD_FN void load_int4_groups(const uint8_t* at, Vec& scale, Vec& zero) {
    const Int groups = _mm256_loadu_si256(reinterpret_cast<const Int*>(at));
    const Int halves = _mm256_and_si256(groups, _mm256_set1_epi32(0xffff));
    const Int packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(halves, halves), 0xd8);
    const Int is_f16 = _mm256_slli_epi32(groups, 7);  // blendv looks at bit 31
    scale = _mm256_blendv_ps(_mm256_castsi256_ps(_mm256_slli_epi32(groups, 16)),
                             _mm256_cvtph_ps(_mm256_castsi256_si128(packed)),
                             _mm256_castsi256_ps(is_f16));
    zero =
        _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(groups, 16), _mm256_set1_epi32(255)));
  }
  SIMD_FN Int four(const int8_t* x) {
    int32_t bytes;
    __builtin_memcpy(&bytes, x, sizeof(bytes));
    return _mm256_set1_epi32(bytes);
  }
  // sums[j] = start[j] + w . x[j] for N vectors of 4 kLines, 32 apart.
  template <int N, int kLines>
  SIMD_FN void dot(const Int* w, const int8_t* x, const int32_t* start, Int* sums) {
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) sums[j] = dot_one<kLines>(w, x + 32 * j, start[j]);
  }
  template <int kLines>
  SIMD_FN Int dot_one(const Int* w, const int8_t* x, int32_t start) {
    Int sum = _mm256_set1_epi32(start);
    if constexpr (kVnni) {
#pragma GCC unroll 8
      for (int i = 0; i < kLines; ++i) sum = _mm256_dpbusd_avx_epi32(sum, w[i], four(x + 4 * i));
      return sum;
    }
    // Pairs of products are at most 2 * 24 * 127 = 6096: four of them fit 16 bits, eight do not.
#pragma GCC unroll 2
    for (int half = 0; half < kLines; half += 4) {
      Int pairs = _mm256_maddubs_epi16(w[half], four(x + 4 * half));
#pragma GCC unroll 3
      for (int i = half + 1; i < half + 4; ++i)
        pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w[i], four(x + 4 * i)));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    return sum;
  }
  SIMD_FN Vec to_float(Int v) { return _mm256_cvtepi32_ps(v); }
};

}  // namespace nibble::cpu
