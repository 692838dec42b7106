// Products of bf16 with float32 sums in blocks of 16 rows, on AMX tiles or by AVX-512's dot
// products. Both read the same bytes; their sums round in different orders. Include only in files
// compiled for AVX-512 F and BF16.
//
//   c[m][n] (+)= sum over k of a[m][k] b[k][n]    m < 16, n < 16 kN, k < 32 steps
// a: bf16, row by row. b: for each block of 16 columns and each step of 32 k, 16 lines of 64 bytes:
// line r holds k = 2r and 2r + 1 of each column. A row's sums do not depend on the other rows.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "cpu/amx_tiles.h"

namespace nibble::cpu {

struct Bf16Operands {
  const std::byte* a;
  int64_t a_row;  // bytes from row to row; 16 rows may be read
  const std::byte* b;
  int64_t b_block;  // bytes from block to block of columns
  float* c;
  int64_t c_row;  // floats from row to row; 16 rows may be written
  int64_t steps;
  int rows;  // that matter
};

struct AmxBf16 {
  static void begin() { AmxTiles::begin(); }
  static void end() { AmxTiles::end(); }
  // kFresh: c counts as zero.
  template <int kN, bool kFresh>
  static void multiply(const Bf16Operands& p) {
    static_assert(kN == 2 || kN == 4);
    const int64_t c_bytes = 4 * p.c_row;
    if constexpr (kFresh) {
      AmxTiles::zero<0>(), AmxTiles::zero<1>();
      if constexpr (kN == 4) AmxTiles::zero<2>(), AmxTiles::zero<3>();
    } else {
      AmxTiles::load<0>(p.c, c_bytes), AmxTiles::load<1>(p.c + 16, c_bytes);
      if constexpr (kN == 4)
        AmxTiles::load<2>(p.c + 32, c_bytes), AmxTiles::load<3>(p.c + 48, c_bytes);
    }
    const std::byte *a = p.a, *b = p.b;
    for (int64_t s = 0; s < p.steps; ++s, a += 64, b += kTileBytes) {
      AmxTiles::load<4>(a, p.a_row);
      AmxTiles::load<5>(b), AmxTiles::dot_bf16<0, 4, 5>();
      AmxTiles::load<6>(b + p.b_block), AmxTiles::dot_bf16<1, 4, 6>();
      if constexpr (kN == 4) {
        AmxTiles::load<7>(b + 2 * p.b_block), AmxTiles::dot_bf16<2, 4, 7>();
        AmxTiles::load<5>(b + 3 * p.b_block), AmxTiles::dot_bf16<3, 4, 5>();
      }
    }
    AmxTiles::store<0>(p.c, c_bytes), AmxTiles::store<1>(p.c + 16, c_bytes);
    if constexpr (kN == 4)
      AmxTiles::store<2>(p.c + 32, c_bytes), AmxTiles::store<3>(p.c + 48, c_bytes);
  }
};

struct Avx512Bf16 {
  static void begin() {}
  static void end() {}
  template <int kN, bool kFresh>
  static void multiply(const Bf16Operands& p) {
    if (p.rows == 1) return multiply_rows<1, kN, kFresh>(p, 0);
    if (p.rows == 2) return multiply_rows<2, kN, kFresh>(p, 0);
    for (int m = 0; m < p.rows; m += 4) multiply_rows<4, kN, kFresh>(p, m);
  }

 private:
  // kM rows from m0 on.
  template <int kM, int kN, bool kFresh>
  static void multiply_rows(const Bf16Operands& p, int m0) {
    float* c = p.c + m0 * p.c_row;
    __m512 acc[kM][kN];
#pragma GCC unroll 4
    for (int m = 0; m < kM; ++m)
#pragma GCC unroll 4
      for (int n = 0; n < kN; ++n)
        acc[m][n] = kFresh ? _mm512_setzero_ps() : _mm512_loadu_ps(c + m * p.c_row + 16 * n);
    for (int64_t s = 0; s < p.steps; ++s)
      for (int r = 0; r < 16; ++r) {
        const std::byte *a = p.a + m0 * p.a_row + 64 * s + 4 * r,
                        *b = p.b + kTileBytes * s + 64 * r;
        __m512i line[kN];
#pragma GCC unroll 4
        for (int n = 0; n < kN; ++n) line[n] = _mm512_loadu_si512(b + n * p.b_block);
#pragma GCC unroll 4
        for (int m = 0; m < kM; ++m) {
          int32_t pair;
          __builtin_memcpy(&pair, a + m * p.a_row, sizeof(pair));
          const __m512i pairs = _mm512_set1_epi32(pair);
#pragma GCC unroll 4
          for (int n = 0; n < kN; ++n)
            acc[m][n] = _mm512_dpbf16_ps(acc[m][n], reinterpret_cast<__m512bh>(pairs),
                                         reinterpret_cast<__m512bh>(line[n]));
        }
      }
#pragma GCC unroll 4
    for (int m = 0; m < kM; ++m)
#pragma GCC unroll 4
      for (int n = 0; n < kN; ++n) _mm512_storeu_ps(c + m * p.c_row + 16 * n, acc[m][n]);
  }
};

}  // namespace nibble::cpu
