// Products of bf16 weights in plain rows with activations rounded to bf16, by AMX tiles. A tile of
// weights is 16 rows of 32 k as they lie in memory, so that nothing is packed or looked up; inputs
// are turned once, and results turned back:
//
//   y[m][n] = bias[n] + sum over k of w[n][k] x[m][k], in the tiles' order: the same whatever the
// batch. Sums are float32.
//
// Bytes: the weights once. Work: 16 x 16 x 32 products a dot, 16 cycles each. Reached on 2 cores of
// a Xeon with AMX (reads at 26 to 30 GB/s), nibble bench ops, out_proj of gpt-oss-20b, 2026-11-22:
// one token 0.78 to 0.80 ms (99% of the floor; FloatKernels 0.95 to 1.0), 8 tokens 0.90 (2.0 to
// 2.4), 64 tokens 947 GFLOP/s (208), 512 tokens 1,275 (199). What binds: memory up to 8 tokens, for
// one input wastes 15 of a tile's 16 columns, yet a dot is faster than memory gives its weights;
// beyond, inputs and weights from L2. Lost: weights turned into lines, as MXFP8's are (one token
// 1.9 ms).
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
  const std::byte* x;    // [ceil(tokens / 16)][steps][1024]
  int64_t tokens;
  float* y;  // y[m * ldy + n]
  int64_t ldy;
};

struct Bf16RowKernels {
  // 16 rows of K float32, at most `tokens` of them there, as tiles: [steps][16 pairs of k][16][2].
  void (*turn)(const float* const* x, int64_t tokens, int64_t steps, std::byte* to);
  void (*multiply)(const Bf16RowRun& run);
};

// Those of kAmx.
const Bf16RowKernels& bf16_row_kernels(cpu::Isa isa);

}  // namespace nibble::ops
