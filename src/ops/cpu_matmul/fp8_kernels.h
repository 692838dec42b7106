// Products of MXFP8 panels (Layout::kPanels16) with float32 activations, written once over vectors
// of floats and compiled for each instruction set. (E4M3 does not fit int8.)
//
//   y[m][n] = bias[n] + sum over blocks b, ascending, of fma(2^(e[n][b] - 127), part, so far)
//   part: four sums of w x, k mod 4, each in order, added as (0 + 1) + (2 + 3)
// One lane per row n: the order is the same whatever the batch and the instruction set.
// A NaN code counts as 480: the encoder writes none.
#pragma once

#include <cstdint>

#include "cpu/isa.h"

namespace nibble::ops {

struct Fp8Panel {
  const uint8_t* codes;   // [blocks][32][16]
  const uint8_t* scales;  // [blocks][16]
  const uint16_t* bias;   // [16] or none
  int64_t blocks;         // K / 32
  const float* const* x;  // [tokens][K]
  int64_t tokens;
  float* y;  // y[m * ldy + n]
  int64_t ldy;
  float* sums;  // [tokens][16], working memory
};

struct Fp8Kernels {
  void (*multiply)(const Fp8Panel& panel);
};

// Those of kAvx512, kAvx2 or kNeon.
const Fp8Kernels& fp8_kernels(cpu::Isa isa);

}  // namespace nibble::ops
