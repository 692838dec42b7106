// Bodies of Fp8Kernels over a vector type S (cpu/simd_*.h); see float_kernels_impl.h for how it is
// compiled.
//
// Bytes: 33 per 32 weights, once; for more inputs than one round a decoded block waits in L1.
// Reached on one core of an EPYC beside other work, 2026-11-21, out_proj of gpt-oss-20b: one token
// 0.65 ms (bf16 rows 0.97, MXFP4 by int8 0.26), 64 tokens 32 ms, as bf16 rows and 3.8 times MXFP4
// by int8. What binds: float32 multiply-adds, 32 a block, row of vectors and input, for E4M3 does
// not fit int8.
#pragma once

#include "cpu/simd.h"
#include "ops/cpu_matmul/fp8_kernels.h"

namespace nibble::ops {

template <typename S>
struct Fp8Panels {
  using Vec = typename S::Vec;
  static constexpr int kLanes = S::kLanes;
  static constexpr int kMostTokens = kLanes == 8 ? 2 : 4;
  static constexpr int64_t kAhead = 8192, kScalesAhead = kAhead / 32;

  // sums[m] += scale * (block . x[m]) for M inputs and kLanes rows. `block` holds [32][stride]
  // codes, or what load_e4m3() makes of them.
  template <int M, typename Code>
  static void block(const Code* codes, int stride, Vec scale, const float* const* x, int64_t k0,
                    float* sums) {
    Vec part[M][4];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) part[m][i] = S::zero();
    for (int k = 0; k < 32; k += 4) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const Vec w = load(codes + (k + i) * stride);
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) part[m][i] = S::fma(w, S::set1(x[m][k0 + k + i]), part[m][i]);
      }
    }
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      const Vec sum = S::add(S::add(part[m][0], part[m][1]), S::add(part[m][2], part[m][3]));
      S::store(sums + 16 * m, S::fma(scale, sum, S::load(sums + 16 * m)));
    }
  }
  SIMD_FN Vec load(const uint8_t* codes) { return S::load_e4m3(codes); }
  SIMD_FN Vec load(const float* values) { return S::load(values); }

  // Inputs from `m` on, as many at a time as registers hold.
  template <typename Code>
  static void all_tokens(const Code* codes, int stride, Vec scale, const Fp8Panel& p, int64_t k0,
                         int row) {
    int64_t m = 0;
    for (; m + kMostTokens <= p.tokens; m += kMostTokens)
      block<kMostTokens>(codes, stride, scale, p.x + m, k0, p.sums + 16 * m + row);
    for (; m < p.tokens; ++m) block<1>(codes, stride, scale, p.x + m, k0, p.sums + 16 * m + row);
  }

  // kLanes rows from `row` on. For more inputs than one round the block is decoded first.
  static void rows(const Fp8Panel& p, int row) {
    float decoded[32 * kLanes];
    for (int64_t b = 0; b < p.blocks; ++b) {
      const uint8_t *codes = p.codes + 512 * b + row, *e = p.scales + 16 * b + row;
      if (row == 0) {
        for (int i = 0; i < 8; ++i) __builtin_prefetch(p.codes + 512 * b + kAhead + 64 * i, 0, 1);
        if (b % 4 == 0) __builtin_prefetch(p.scales + 16 * b + kScalesAhead, 0, 1);
      }
      const Vec scale = S::mul(S::scales(e), S::set1(S::kE4m3Unit));
      if (p.tokens <= kMostTokens) {
        all_tokens(codes, 16, scale, p, 32 * b, row);
        continue;
      }
      for (int k = 0; k < 32; ++k) S::store(decoded + k * kLanes, S::load_e4m3(codes + 16 * k));
      all_tokens(decoded, kLanes, scale, p, 32 * b, row);
    }
  }

  static void multiply(const Fp8Panel& p) {
    for (int64_t i = 0; i < 16 * p.tokens; ++i) p.sums[i] = 0;
    for (int row = 0; row < 16; row += kLanes) {
      rows(p, row);
      const Vec bias = p.bias == nullptr ? S::zero() : S::load_bf16(p.bias + row);
      for (int64_t m = 0; m < p.tokens; ++m)
        S::store(p.y + m * p.ldy + row, S::add(S::load(p.sums + 16 * m + row), bias));
    }
  }
};

template <typename S>
constexpr Fp8Kernels make_fp8_kernels() {
  return {.multiply = Fp8Panels<S>::multiply};
}

}  // namespace nibble::ops
