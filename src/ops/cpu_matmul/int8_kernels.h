// Products of MXFP4, NVFP4 and INT4 panels (Layout::kPanels16) with int8 activations in blocks of
// 32, written once over vectors of 32-bit lanes and compiled for each instruction set that can
// multiply bytes.
//
//   MXFP4: y[m][n] = bias[n] + sum over blocks b, ascending, of
//                    fma(sum in b of 2w[n][k] q[m][k], 2^(e[n][b] - 127) * (step[m][b] / 2), so
//                    far)
//   NVFP4: y[m][n] = fma(sum over b of fma(fma(s[n][2b + 1], second, s[n][2b] * first),
//                                          step[m][b] / 2, so far), g[n], bias[n])
//                    first, second: the sums in the 16 k that share a scale
//   INT4:  as MXFP4, of (w - zero) q: fma(-zero[n][b], sum of q, sum of w q), and fma(sum over b,
//   2,
//          bias[n]) for the step's half
// The sum within a block is a whole number, exact; blocks are added in float32, one lane per row n.
// So an output has the same bits whatever the batch, the tile and the instruction set.
//
// Inputs lie in tiles of a few vectors, block by block, so that one pointer walks all that a block
// needs:  block b of a tile of M: int8 q[M][32], float step / 2 [M], int32 offset[parts][M].
// offset[m] = -kCodeOffset * sum of q: the codes are looked up as 2 e2m1 + kCodeOffset, unsigned,
// as x86's byte products want them. (INT4, whose codes are unsigned: a float, the sum of q.) A part
// is what shares a scale of the weights: 32 k, or 16.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/isa.h"
#include "formats/format.h"

namespace nibble::ops {

inline constexpr int kPanelRows = 16;
// Scales of weights in a block of 32.
constexpr int int8_parts(Format format) { return format == Format::kNvfp4 ? 2 : 1; }
// Of a block of a tile, per vector.
constexpr int64_t int8_tile_bytes(int parts) { return 32 + 4 + 4 * parts; }

// One panel against one tile.
struct PanelTile {
  const uint8_t* codes;     // [blocks][256]
  const uint8_t* scales;    // [blocks][parts][16]
  const float* row_scales;  // [16], of NVFP4
  const uint16_t* bias;     // [16] or none
  int64_t blocks;           // K / 32
  const std::byte* tile;    // [blocks] of `tile_size` vectors
  int tile_size;            // one that tile_size() gives
  int tokens;               // vectors that there are, <= tile_size
  float* y;                 // y[m * ldy + n]
  int64_t ldy;
  bool from_memory;  // the panel is met for the first time: fetch ahead
};

// Of one format of weights.
struct Int8Kernels {
  int most_tokens;  // of a tile
  int parts;
  // Vector m of a tile of `tile_size`, from x [blocks * 32]: a step for each block, or one for all.
  void (*encode)(const float* x, int64_t blocks, int tile_size, int m, std::byte* tile);
  void (*encode_row)(const float* x, int64_t blocks, int tile_size, int m, std::byte* tile);
  void (*multiply)(const PanelTile&);
};

struct Int8KernelSet {
  Int8Kernels mxfp4, nvfp4, int4_g32, int4_g128;
  const Int8Kernels& of(Format format) const {
    if (format == Format::kNvfp4) return nvfp4;
    if (format == Format::kInt4G32) return int4_g32;
    return format == Format::kInt4G128 ? int4_g128 : mxfp4;
  }
};

// Those of `isa`: kAvx512Vnni, kAvxVnni, kAvx2 or kNeonDot.
const Int8KernelSet& int8_kernels(cpu::Isa isa);

// Vectors of the tile that holds `count` of them, up to `most`: the next size that is compiled.
constexpr int tile_size(int64_t count, int most) {
  for (const int size : {1, 2, 3, 4, 6, 8, 12, 16})
    if (size >= count || size >= most) return size;
  return most;
}

}  // namespace nibble::ops
