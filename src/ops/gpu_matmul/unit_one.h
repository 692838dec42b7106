// How unit_one.cuh shares out a token's product with NVFP4 weights: pure functions of shape and
// GPU, for the tables and the launch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "cuda/caps.h"

namespace nibble::ops::gpu {

enum class OneWork { kDense, kChosen, kSum };

struct UnitOneShape {
  OneWork work;
  int64_t rows, cols;     // of an expert
  int top_k = 1;          // 1 of a dense layer
  bool has_norm = false;  // in front, in the same kernel
  int tokens = 1;         // of the step: each has its share of the GPU's blocks
  bool has_bias = true;   // or there may be one
};

struct UnitOne {
  const uint8_t* units = nullptr;
  const float* row_scales = nullptr;
  const uint16_t* bias = nullptr;  // or none
  int64_t expert_bytes = 0;
  int row_tiles = 0, num_units = 0;  // of an expert
  int grid = 0;                      // blocks of a token
  int each = 0, more = 0;            // row tiles of a block, and blocks that have one more
  int choices = 0;                   // summed up; else 1
  // Warps that share K of a row tile, what each has, and the chunks of that; teams of such warps.
  int parts = 0, part_units = 0, chunk_units = 0, vectors = 0, teams = 0;
  int inverse_parts = 0;       // 2^16 / parts, rounded up
  uint32_t inverse_tiles = 0;  // 2^32 / row_tiles, rounded up
  int stages = 0;              // of a warp's ring
  // The next kernel may start only behind this one's wait: of chosen experts and of one token's
  // sum, whose weights it would come in front of (behind several tokens' it is a norm, with none),
  // and of one row tile a block, which ends soon.
  bool releases_late = false;
  int slices = 0;  // sums of a row
  // In shared memory, behind the rings: digits of each warp's part of K or, kSum, of the parts of
  // each choice; of a row tile (and choice) 16 scales, then biases; sums.
  uint32_t digits = 0, digits_of_part = 0, scales = 0, biases = 0, sums = 0, end = 0;
};

inline constexpr int kUnitOneStages = 8;  // at most
inline constexpr int kOneMostUnits = 16;  // of a part of K; 4 behind a norm

// Sets parts, part_units and chunk_units for the least time of the warp that has most; of equal
// times the most parts. Where K has no even parts the last one begins inside the one before: then
// such as have the fewest units twice.
inline bool share_out_k(UnitOne& m, OneWork work, int warps, int tiles, int most_units,
                        bool even = true) {
  const auto shares = [](int all, int of) { return (all + of - 1) / of; };
  const bool is_sum = work == OneWork::kSum;
  std::pair least{1 << 30, 0};
  for (int parts = 1; parts <= warps && parts <= m.num_units; ++parts) {
    const int part = shares(m.num_units, parts);
    if (part > most_units || (parts - 1) * part >= m.num_units) continue;
    if (even && m.num_units % parts != 0) continue;
    int units = std::min(part, 4);
    while (part % units != 0) --units;
    // A team has all row tiles of every teams-th choice, or every teams-th row tile.
    const int teams = warps / parts, of_team = is_sum ? shares(m.choices, teams) : 1;
    const int visits = (is_sum ? of_team * tiles : shares(tiles, teams)) * (part / units);
    // Instructions for the digits of four units, a unit's products, and those around a chunk.
    if (const std::pair cost{parts * part, of_team * shares(part, 4) * 110 +
                                               visits * (48 * units + (is_sum ? 90 : 64))};
        cost <= least)
      m.parts = parts, m.part_units = part, m.chunk_units = units, least = cost;
  }
  return m.parts > 0 || (even && share_out_k(m, work, warps, tiles, most_units, false));
}

// What of UnitOne the shape says; none: it does not fit.
inline std::optional<UnitOne> plan_unit_one(const UnitOneShape& s, const cuda::Caps& gpu) {
  constexpr int kUnitBytes = 576, kDigitsBytes = 208;
  const bool is_small = gpu.sm / 10 == 12;  // 99 KB of shared memory a block
  const int warps = is_small ? 8 : 16, choices = s.work == OneWork::kSum ? s.top_k : 1;
  UnitOne m{.row_tiles = static_cast<int>(s.rows / 16), .num_units = static_cast<int>(s.cols / 64)};
  const int shared_out = m.row_tiles * (s.work == OneWork::kChosen ? s.top_k : 1);
  m.grid = std::min(shared_out, std::max(1, gpu.num_sms / s.tokens));
  m.each = shared_out / m.grid, m.more = shared_out % m.grid;
  m.choices = choices;
  m.releases_late = s.work == OneWork::kChosen || (s.work == OneWork::kSum && s.tokens == 1) ||
                    (s.work == OneWork::kDense && !s.has_norm && shared_out == m.grid);
  if (m.row_tiles == 1 && s.work == OneWork::kChosen) return {};  // inverse_tiles has 32 bits
  const int tiles = m.each + (m.more > 0);
  if (!share_out_k(m, s.work, warps, tiles, s.has_norm ? 4 : kOneMostUnits)) return {};
  m.teams = warps / m.parts, m.vectors = m.part_units / m.chunk_units;
  m.inverse_parts = (65536 + m.parts - 1) / m.parts;
  m.inverse_tiles = static_cast<uint32_t>(
      ((uint64_t{1} << 32) + static_cast<uint64_t>(m.row_tiles) - 1) / m.row_tiles);
  const int of_team = (choices + m.teams - 1) / m.teams;
  const int steps =
      m.vectors * (s.work == OneWork::kSum ? of_team * tiles : (tiles + m.teams - 1) / m.teams);
  m.slices = m.parts * m.vectors * choices;
  m.digits_of_part = static_cast<uint32_t>(m.part_units * kDigitsBytes);
  const int digits = s.work == OneWork::kSum ? choices * m.parts : warps;
  const auto padded = [](int64_t bytes) {
    return static_cast<uint32_t>((bytes + 127) / 128 * 128);
  };
  const uint32_t scale_bytes = padded(int64_t{tiles} * choices * 64);
  const auto lay_out = [&](int stages) {
    m.stages = stages;
    m.digits = padded(int64_t{warps} * stages * m.chunk_units * kUnitBytes);
    m.scales = m.digits + padded(int64_t{digits} * m.digits_of_part);
    m.biases = m.scales + scale_bytes;
    m.sums = m.biases + (s.has_bias ? scale_bytes : 0);
    m.end = m.sums + padded(int64_t{tiles} * m.slices * 64);
    return m.end;
  };
  // Not half of an SM, so that the next kernel's weights are on their way while this one works;
  // that behind chosen experts is their sum, which takes less.
  const auto all = static_cast<uint32_t>(gpu.smem_per_block_bytes);
  const uint32_t most = s.work == OneWork::kChosen ? all / 9 * 5 : all / 32 * 15;
  int stages = std::min(steps, kUnitOneStages);
  while (lay_out(stages) > most && stages > 2) --stages;
  // Where the chosen experts' blocks leave SMs empty two of their sum would share one.
  if (s.work == OneWork::kSum && gpu.num_sms % s.tokens != 0) m.end = std::max(m.end, all / 2);
  return m.end + 8 * 1024 <= gpu.smem_per_block_bytes ? std::optional(m) : std::nullopt;
}

}  // namespace nibble::ops::gpu
