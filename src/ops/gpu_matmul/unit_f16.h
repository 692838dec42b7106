// How unit_f16_sm90.cuh shares out a dense product of few tokens with NVFP4 weights: a pure
// function of shape and GPU, for the tables and the launch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "cuda/caps.h"

namespace nibble::ops::gpu {

inline constexpr int64_t kF16Tokens = 8;
inline constexpr int kF16Warps = 16, kF16MostSlices = 8, kF16Ahead = 4,
                     kF16KeptTiles = 4;   // tiles: of one round or of two
inline constexpr int kF16TileSums = 512;  // bytes: of a warp's part of a row tile
// Units of K that a warp keeps to, whose activations it holds in registers.
inline constexpr int kF16Parts[] = {4, 2, 1};

struct UnitF16 {
  const uint8_t* units = nullptr;
  const float* row_scales = nullptr;
  const uint16_t* bias = nullptr;  // or none
  const uint16_t* x = nullptr;     // [tokens, K] bf16
  void* parts = nullptr;           // [row tiles, slices, 32] float4, of more slices than one
  uint32_t* counters = nullptr;    // [groups], zero
  int tokens = 0, row_tiles = 0, num_units = 0;
  int part_units = 0, num_parts = 0;  // K in warps' parts
  int slices = 0, slice_parts = 0;    // blocks that share a row tile, and the parts of one
  int groups = 0;                     // of `slices` blocks
  int each = 0, more = 0;             // row tiles of a group, and groups that have one more
  int round_tiles = 0;                // between two barriers
  int ahead = 0;                      // row tiles that a warp's ring has room for
  uint32_t scales = 0, sums = 0, sums_of_part = 0, end = 0;  // in shared memory, behind the rings

  int tiles() const { return each + (more > 0); }
};

// What of UnitF16 the shape says, for the least time of a block; none: K does not fit.
inline std::optional<UnitF16> plan_unit_f16(int64_t rows, int64_t cols, const cuda::Caps& gpu) {
  constexpr int kUnitBytes = 576, kStaging = 8 * 144;
  UnitF16 best;
  int least = 1 << 30;
  for (const int part_units : kF16Parts) {
    UnitF16 m{.row_tiles = static_cast<int>(rows / 16), .num_units = static_cast<int>(cols / 64)};
    if (part_units > m.num_units) continue;
    m.part_units = part_units, m.num_parts = (m.num_units + part_units - 1) / part_units;
    m.slices = (m.num_parts + kF16Warps - 1) / kF16Warps;
    if (m.slices > kF16MostSlices) continue;
    m.slice_parts = (m.num_parts + m.slices - 1) / m.slices;
    m.groups = std::min(m.row_tiles, gpu.num_sms / m.slices);
    m.each = m.row_tiles / m.groups, m.more = m.row_tiles % m.groups;
    // Units of a warp, and what adding up slices takes.
    const int cost = m.tiles() * part_units + (m.slices > 1 ? m.slices : 0);
    if (cost < least) least = cost, best = m;
  }
  if (best.groups == 0) return {};
  const int tiles = best.tiles();
  best.round_tiles = tiles <= kF16KeptTiles ? tiles : kF16KeptTiles / 2;
  const int tile_bytes = kF16Warps * best.part_units * kUnitBytes;
  best.sums_of_part =
      static_cast<uint32_t>(std::max(kStaging, std::min(tiles, kF16KeptTiles) * kF16TileSums));
  const int fixed = tiles * 64 + kF16Warps * static_cast<int>(best.sums_of_part) + 1024;
  // Not half of an SM, so that the next kernel's weights are on their way while this one works.
  const int room = static_cast<int>(gpu.smem_per_block_bytes / 32 * 15) - fixed;
  best.ahead = std::min({kF16Ahead, tiles, room / tile_bytes});
  if (best.ahead == 0) return {};
  best.scales = static_cast<uint32_t>(best.ahead * tile_bytes);
  best.sums = best.scales + static_cast<uint32_t>((tiles * 64 + 127) / 128 * 128);
  best.end = best.sums + kF16Warps * best.sums_of_part;
  return best;
}

// Float32 of blocks' sums that meet in L2.
inline int64_t f16_parts(const UnitF16& m) { return int64_t{m.row_tiles} * m.slices * 128; }

}  // namespace nibble::ops::gpu
