// Products of MXFP4 panels (Layout::kPanels16) with int8 activations of one step per vector, on
// AMX: a row of weights is a row of whole numbers too, 2 e2m1 << (e - base), where the exponents e
// of its blocks lie within 3 of the least, its base. Then nothing is scaled inside the sum:
//
//   y[m][n] = fma(sum over k of (2 e2m1 << (e - base)) q[m][k], 2^(base[n] - 127) * (step[m] / 2),
//                 bias[n])
// The sum is exact, so few vectors may go another way (VNNI, from the nibbles) and have the same
// bits. Panels with a row of wider exponents add up their blocks in float32, for any number of
// vectors, as Int8Kernels do; count_wide_panels() says how many a weight has.
//
// Bytes: the weights once. Work: 16 x 16 x 64 products a dot, 16 cycles each: one core of an
// Emerald Rapids reaches 7 TOP/s with nothing else to do. Reached on 2 of 16 virtual Xeon cores,
// 2026-11-21, beside GPU jobs (reads at 22 to 30 GB/s, tiles alone 11.3 TOP/s): 64 tokens 84% of
// the floor in moe_up and moe_down; 512 tokens 2.4 TOP/s in moe_up, 2.2 in moe_down, 3.2 to 3.3 in
// norm_qkv and out_proj (VNNI there: 0.5 to 0.57); 2,048 tokens 3.4 in moe_up. What binds: inputs
// do not fit L1, and a step's 4 KB of them from L2 take longer than its four dots. Lost: an odd
// last tile of inputs by itself, which looks up all weights once more (512 tokens: 2.1 in
// moe_up, 1.5 in moe_down).
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/isa.h"

namespace nibble::ops {

// Inputs that share a tile, and k that share a step of it.
inline constexpr int kAmxTileTokens = 16;
inline constexpr int kAmxStepElems = 64;
inline constexpr int kAmxTileBytes = kAmxTileTokens * kAmxStepElems;
inline constexpr int kMostExponentSpread = 3;  // 12 << 3 is 96

struct PanelRun {
  const uint8_t* codes;   // [panels][K / 32][256]
  const uint8_t* scales;  // [panels][K / 32][16]
  const uint16_t* bias;   // [panels * 16] or none
  int64_t panels;         // at most kMostPanels
  int64_t steps;          // K / 64
  int64_t tokens;
  const int8_t* tiles;  // [ceil(tokens / 16)][steps][16][64], zeros behind the last; one more tile
                        // may be read
  const std::byte* block_tiles;  // the same codes as Int8Kernels take them, in tiles of 16
  float* y;                      // y[m * ldy + n]
  int64_t ldy;
  std::byte* scratch;  // kRunScratchBytes of this worker, at 64 bytes
};
inline constexpr int64_t kMostPanels = 4;
inline constexpr int64_t kRunScratchBytes = 56 << 10;

struct Int8RowKernels {
  void (*multiply)(const PanelRun& run);
};

// Those of kAmx; for kAvx512Vnni the same but for the tile instructions, which are emulated: for
// tests.
const Int8RowKernels& int8_row_kernels(cpu::Isa isa);

}  // namespace nibble::ops
