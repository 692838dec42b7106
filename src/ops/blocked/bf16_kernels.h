// Products of MXFP8 panels (Layout::kPanels16) with activations rounded to bf16, by products of
// bf16 (cpu/bf16_products.h) on AVX-512 BF16, for machines where activations may be rounded. A
// weight is exact in bf16 (E4M3 has 4 bits, its scale is a power of two; what is below 2^-126
// counts as zero), sums are float32.
//
//   y[m][n] = bias[n] + sum over k of w[n][k] x[m][k], in the instruction's order: the same
// whatever the batch.
//
// Bytes: the weights once. Reached on 2 cores of an EPYC (Zen 4, AVX-512 BF16, no AMX), 2026-11-21,
// nibble bench ops, out_proj of gpt-oss-20b: MXFP8 one token 0.40 to 0.41 ms (83 to 89% of the
// floor; Fp8Kernels 0.36), 8 tokens 0.77 (1.16), 512 tokens 433 GFLOP/s (166). What binds: dot
// products of bf16, 64 flops a cycle; one token: seven operations that look up 32 weights. Lost:
// lookups through float16 and float32 (one token 0.57 ms), lines through memory for one token
// (0.49); bf16 rows turned into lines: 512 tokens 432 GFLOP/s (FloatKernels 162), but one token
// 0.86 to 0.89 ms in place of 0.74; AMX tiles on a Xeon: 512 tokens 8 to 13 times float32's speed,
// MXFP8 and bf16, but one token takes 1.5 to 2 times as long, as lines go through memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/isa.h"

namespace nibble::ops {

inline constexpr int64_t kBf16Panels = 4;   // of 16 rows, that meet an input at once
inline constexpr int64_t kBf16Inputs = 16;  // that meet them at once

struct Bf16Run {
  const uint8_t* codes;   // [panels][steps][32][16]
  const uint8_t* scales;  // [panels][steps][16]
  const uint16_t* bias;   // [16 panels] or none
  int64_t panels;         // at most kBf16Panels
  int64_t steps;          // K / 32
  const uint16_t* x;      // bf16 [tokens, rounded up to kBf16Inputs][K]
  int64_t tokens;
  float* y;  // y[m * ldy + n]
  int64_t ldy;
  std::byte* scratch;  // bf16_run_scratch_bytes() of this worker, at 64 bytes
};
constexpr int64_t bf16_run_scratch_bytes(int64_t steps) {
  return kBf16Panels * (steps * 1024 + kBf16Inputs * 64);
}

struct Bf16Kernels {
  void (*encode)(const float* x, int64_t n, uint16_t* to);  // n: a multiple of 32
  void (*multiply)(const Bf16Run& run);
};

// Those of kAvx512Bf16.
const Bf16Kernels& bf16_kernels(cpu::Isa isa);

}  // namespace nibble::ops
