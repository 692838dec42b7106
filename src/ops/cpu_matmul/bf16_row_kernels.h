// Products of bf16 weights in plain rows with activations rounded to bf16, by AMX tiles or
// AVX-512's dot products:
//
//   y[m][n] = bias[n] + sum over k of w[n][k] x[m][k], in the instruction's order: the same
// whatever the batch. Sums are float32.
//
// AMX: a tile of weights is 16 rows of 32 k as they lie in memory, so that nothing is packed or
// looked up; inputs are turned once, and results turned back. AVX-512: a line of a row is 32 k, 16
// sums of rows by inputs are in registers, and every 2,048 k their lanes are added up.
//
// Bytes: the weights once. AMX: 16 x 16 x 32 products a dot, 16 cycles each. Reached on 2 cores of
// a Xeon with AMX (reads at 26 to 30 GB/s), nibble bench ops, out_proj of gpt-oss-20b, 2026-11-22:
// one token 0.78 to 0.80 ms (99% of the floor; FloatKernels 0.95 to 1.0), 8 tokens 0.90 (2.0 to
// 2.4), 64 tokens 947 GFLOP/s (208), 512 tokens 1,275 (199). What binds: memory up to 8 tokens, for
// one input wastes 15 of a tile's 16 columns, yet a dot is faster than memory gives its weights;
// beyond, inputs and weights from L2. Lost: weights turned into lines, as MXFP8's are (one token
// 1.9 ms).
// AVX-512: 32 products a dot. One core of an EPYC (Zen 5), the same product (4,096 columns),
// 2026-11-28, beside other work: 512 tokens 26.6 ms, 455 GFLOP/s (FloatKernels 69 to 75 ms), 64
// 3.8 (9.4), 8 1.02 (1.27), 1 0.76 (0.80), but 4 0.88 (0.70). What binds: memory up to 8 tokens,
// then the dots, of which a core makes two a cycle.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/isa.h"

namespace nibble::ops {

inline constexpr int64_t kTurnedInputs = 16;  // that share a tile

struct Bf16RowRun {
  const uint16_t* w;     // [rows][K]
  const uint16_t* bias;  // [rows] or none
  int64_t rows;          // a multiple of 16
  int64_t steps;         // K / 32
  const std::byte* x;    // [ceil(tokens / 16)][steps * 1024], from turn()
  int64_t tokens;
  float* y;  // y[m * ldy + n]
  int64_t ldy;
};

struct Bf16RowKernels {
  // 16 rows of K float32, at most `tokens` of them there: on AMX as tiles, [steps][16 pairs of
  // k][16][2], else [4][steps][4 inputs][32].
  void (*turn)(const float* const* x, int64_t tokens, int64_t steps, std::byte* to);
  void (*multiply)(const Bf16RowRun& run);
};

// Those of kAmx or kAvx512Bf16.
const Bf16RowKernels& bf16_row_kernels(cpu::Isa isa);
const Bf16RowKernels& bf16_row_kernels_avx512();

}  // namespace nibble::ops
