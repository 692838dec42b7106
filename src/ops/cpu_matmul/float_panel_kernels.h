// Products of panels (Layout::kPanels16) with float32 activations, written once over vectors of
// floats and compiled for each instruction set: MXFP8, NVFP4, FP8 with scales of rows or of blocks.
//
//   y[m][n] = bias[n] + sum over blocks b, ascending, of fma(scale[n][b], part, so far)
//   part: four sums of w x, k mod 4, each in order, added as (0 + 1) + (2 + 3)
//   blocks: 16 k (NVFP4) or 32; where rows have scales: fma(sum, scale[n], bias[n])
// One lane per row n: the order is the same whatever the batch and the instruction set.
// A NaN code of E4M3 counts as 480: the encoder writes none, and the loader refuses them.
#pragma once

#include <cstdint>

#include "cpu/isa.h"
#include "formats/format.h"

namespace nibble::ops {

struct FloatPanel {
  const uint8_t* codes;     // [K/32] of 16 rows: 512 bytes, NVFP4 256
  const uint8_t* scales;    // as kPanels16 has them
  const float* row_scales;  // [16], of NVFP4 and FP8 with scales of rows
  const uint16_t* bias;     // [16] or none
  int64_t units;            // K / 32
  const float* const* x;    // [tokens][K]
  int64_t tokens;
  float* y;  // y[m * ldy + n]
  int64_t ldy;
  float* sums;  // [tokens][16], working memory
};

struct FloatPanelKernels {
  using Multiply = void(const FloatPanel& panel);
  Multiply *mxfp8, *nvfp4, *fp8_row, *fp8_block;
  Multiply* of(Format format) const {
    if (format == Format::kNvfp4) return nvfp4;
    if (format == Format::kFp8Row) return fp8_row;
    return format == Format::kFp8Block ? fp8_block : mxfp8;
  }
};

// Those of kAvx512, kAvx2 or kNeon.
const FloatPanelKernels& float_panel_kernels(cpu::Isa isa);

}  // namespace nibble::ops
