// Launches of the few-token kernels (tiles.cuh, rows_gemv.cuh) for a weight and an op.
#pragma once

#include <algorithm>

#include "ops/ctx.h"
#include "ops/gpu_matmul/gemv_few.cuh"
#include "ops/gpu_matmul/gemv_one.cuh"
#include "ops/gpu_matmul/grouped_gemm.cuh"
#include "ops/gpu_matmul/rows_gemv.cuh"
#include "ops/weight.h"

namespace nibble::ops::gpu {

// Calls fn.operator()<kUnits>() with the units of 64 k of a chunk: kMost or 3, or 1, so that a row
// is whole chunks.
template <int kMost, typename Fn>
void with_chunk_units(int64_t cols, const Fn& fn) {
  const int64_t units = cols / 64;
  if (units % kMost == 0) return fn.template operator()<kMost>();
  if (units % 3 == 0) return fn.template operator()<3>();
  return fn.template operator()<1>();
}

inline TileMatrix tile_matrix(const Weight& w, int chunk_units) {
  return {.bytes = w.codes,
          .bias = w.bias,
          .expert_bytes = w.rows * w.row_code_bytes(),
          .row_tiles = static_cast<int>(w.rows / 16),
          .chunks = static_cast<int>(w.cols / 64) / chunk_units};
}

// Row tiles of a round such that its partial sums take at most `bytes`, at least `least`.
inline int round_tiles(const TileMatrix& m, int tokens, int64_t bytes, int least) {
  const int64_t tile_bytes = int64_t{m.chunks} * 16 * tokens * 4;
  return std::max(least, static_cast<int>(bytes / tile_bytes) / least * least);
}

// Blocks for `items` row tiles, those of a unit of `together` in one block.
inline unsigned grid_of(const Ctx& cx, int64_t items, int together = 1) {
  return static_cast<unsigned>(std::clamp<int64_t>(items / together, 1, cx.kernels.gpu.num_sms));
}

// Two blocks of a kernel must not share an SM while others stand empty, as blocks do that start
// beside the kernel before: so a kernel takes more than half of an SM's shared memory. That of a
// sum over experts takes less, to fit beside the one before it and the one behind.
inline constexpr size_t kOneBlockBytes = (NIBBLE_CUDA_SM == 121 ? 51 : 116) * 1024;
// Chunks of a warp on their way: all that a block has of a matrix of attention.
inline constexpr int kOneStages = NIBBLE_CUDA_SM == 121 ? 2 : 4;
// Partial sums of a round.
inline constexpr int kOneRoundBytes = (NIBBLE_CUDA_SM == 121 ? 8 : 16) * 1024;

// Whether gemv_one takes a matrix: a warp for each chunk of a row.
inline bool fits_one(const Weight& w) {
  bool fits = false;
  with_chunk_units<4>(w.cols, [&]<int kUnits>() { fits = w.cols <= kOneColumns<kUnits>; });
  return fits;
}

// Shares of the row tiles, and the shared memory of a block. kHeld: see gemv_one.
template <Items kItems, bool kHeld, int kUnits>
OneLayout lay_out_one(TileMatrix& m, int grid) {
  constexpr int kTogether = kItems == Items::kHeadHalves ? 2 : 1;
  const int items = m.row_tiles / kTogether;
  OneLayout layout{.each = items / grid, .more = items % grid};
  int most = (items + grid - 1) / grid * kTogether;
  m.round_tiles = std::min(most, round_tiles(m, 1, kOneRoundBytes, kTogether));
  if (kHeld && layout.more > 0 && 2 * layout.more <= grid) {
    layout.halved = 2 * layout.more;
    layout.more = 0;
    m.round_tiles = most = layout.each * kTogether + 1;
  }
  layout.digits = (kHeld ? m.chunks : kOneWarps) * kOneStages * kUnits * cuda::kUnitBytes;
  // As far as warps without a chunk read.
  layout.factors = layout.digits + kOneWarps * kUnits * 2 * cuda::kDigitBytes;
  layout.biases = layout.factors + kOneWarps * kUnits * 2 * 8;
  layout.parts = layout.biases + (m.bias != nullptr ? (most * 32 + 127) / 128 * 128 : 0);
  layout.part_bytes = m.round_tiles * m.chunks * 64;
  layout.end = layout.parts + layout.part_bytes * (m.round_tiles < most ? 2 : 1);
  return layout;
}

// T = 1: see gemv_one. kMayHold: of a matrix of attention, whose blocks have few row tiles.
template <Items kItems, bool kMayHold, class Op>
void launch_one(Ctx& cx, const Weight& weight, const Op& op) {
  with_chunk_units<4>(weight.cols, [&]<int kUnits>() {
    TileMatrix m = tile_matrix(weight, kUnits);
    constexpr int kTogether = kItems == Items::kHeadHalves ? 2 : 1;
    const int grid = static_cast<int>(grid_of(cx, m.row_tiles, kTogether));
    const auto launch = [&]<bool kHeld>() {
      const OneLayout layout = lay_out_one<kItems, kHeld, kUnits>(m, grid);
      // Two blocks of norm_qkv find no room beside moe_down's, and one leaves room for out_proj's.
      const bool fits_beside = kHeld && kItems == Items::kHeadHalves;
      cuda::launch(
          cx.stream, gemv_one<kUnits, kOneStages, kItems, kHeld, Op>,
          {.grid = dim3(grid),
           .block = dim3(kOneThreads),
           .smem_bytes = fits_beside ? layout.end : std::max<size_t>(layout.end, kOneBlockBytes),
           .reads_inputs = HasPlaces<Op> || HasNorm<Op>},
          m, layout, op);
    };
    if constexpr (kMayHold) {
      if ((m.row_tiles / kTogether + grid - 1) / grid * kTogether <= kOneStages)
        return launch.template operator()<true>();
    }
    launch.template operator()<false>();
  });
}

// Any T, a matrix of few row tiles a block: see gemv_few.
template <Items kItems, class Op>
void launch_few(Ctx& cx, const Weight& weight, const Op& op) {
  with_chunk_units<4>(weight.cols, [&]<int kUnits>() {
    TileMatrix m = tile_matrix(weight, kUnits);
    constexpr int kTogether = kItems == Items::kHeadHalves ? 2 : 1;
    m.round_tiles = round_tiles(m, kFewTokens, 16 * 1024, kTogether);
    const GemvMemory memory = lay_out({.stages = kFewStages,
                                       .chunk_bytes = kUnits * cuda::kUnitBytes,
                                       .blocks = m.chunks * kUnits * 2,
                                       .vectors = kFewTokens,
                                       .part_tiles = m.round_tiles,
                                       .part_tokens = kFewTokens,
                                       .chunks = m.chunks,
                                       .single_round = false});
    cuda::launch(cx.stream, gemv_few<kUnits, kItems, Op>,
                 {.grid = dim3(grid_of(cx, m.row_tiles, kTogether),
                               (op.tokens + kFewTokens - 1) / kFewTokens),
                  .block = dim3(kGemvThreads),
                  .smem_bytes = memory.end,
                  .reads_inputs = HasPlaces<Op>},
                 m, memory, op);
  });
}

// Any T, many row tiles a block: see grouped_gemm. `most_rows`: of an expert, or the tokens.
// kExact: a row's bits do not depend on the batch.
template <Items kItems, bool kExact, class Op>
void launch_experts(Ctx& cx, const Weight& weight, const Op& op, int most_rows) {
  with_chunk_units<4>(weight.cols, [&]<int kUnits>() {
    const TileMatrix m = tile_matrix(weight, kUnits);
    GemvNeeds needs{.stages = kExpertsStages,
                    .chunk_bytes = kSpan<kUnits> * kUnits * cuda::kUnitBytes,
                    .blocks = m.chunks * kUnits * 2,
                    .vectors = 0,
                    .part_tiles = 0,
                    .part_tokens = 0,
                    .chunks = m.chunks,
                    .single_round = true};
    // Two groups of the most rows, as far as they fit.
    const int64_t free = cx.kernels.gpu.smem_per_block_bytes - 6 * 1024;  // less what it declares
    const int64_t row_bytes = int64_t{needs.blocks} * (cuda::kDigitBytes + 8);
    const int fit = static_cast<int>((free - lay_out(needs).end) / row_bytes);
    int group_rows = 1;
    while (group_rows < std::min(most_rows, kMostRows<kExact>) && 2 * group_rows <= fit)
      group_rows *= 2;
    needs.vectors = std::min(fit, 2 * group_rows);
    GemvMemory memory = lay_out(needs);
    memory.group_rows = group_rows;
    cuda::launch(cx.stream, grouped_gemm<kUnits, kItems, kExact, Op>,
                 {.grid = dim3(grid_of(cx, m.row_tiles * weight.experts)),
                  .block = dim3(kGemvThreads),
                  .smem_bytes = memory.end,
                  .release = cuda::Release::kAfterWait},
                 m, memory, op);
  });
}

// BF16 rows: see gemv_rows. kTokens: of a pass.
template <int kTokens, Items kItems, class Op>
void launch_rows(Ctx& cx, const Weight& weight, const Op& op) {
  with_chunk_units<2>(weight.cols, [&]<int kUnits>() {
    TileMatrix m = tile_matrix(weight, kUnits);
    m.row_tiles = static_cast<int>(weight.rows) / RowTile<kItems, kTokens>::kRows;
    const unsigned grid = grid_of(cx, m.row_tiles);
    const int share = static_cast<int>((m.row_tiles + grid - 1) / grid);
    m.round_tiles = std::min(
        share, round_tiles(m, kTokens, kOneRoundBytes, 1) * 16 / RowTile<kItems, kTokens>::kRows);
    const RowMatrix rows{reinterpret_cast<const uint16_t*>(weight.codes),
                         static_cast<int>(weight.cols)};
    const size_t smem_bytes =
        kRowSlotBytes<kUnits, kTokens, Op> + kTokens * (weight.cols + 32) * 2 +
        2 * int64_t{m.round_tiles} * m.chunks * RowTile<kItems, kTokens>::kRows * kTokens * 4 +
        (m.bias == nullptr ? 0 : share * RowTile<kItems, kTokens>::kRows * 2);
    cuda::launch(cx.stream, gemv_rows<kUnits, kTokens, kItems, Op>,
                 {.grid = dim3(grid, (op.tokens + kTokens - 1) / kTokens),
                  .block = dim3(kGemvThreads),
                  .smem_bytes = std::max(smem_bytes, kOneBlockBytes),
                  .reads_inputs = HasPlaces<Op> || HasNorm<Op>},
                 m, rows, op);
  });
}

}  // namespace nibble::ops::gpu
