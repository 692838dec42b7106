// Experts that some rows of activations each meet, by wgmma in FP8 that loses next to nothing:
// y[slot] = x[row of slot] W_e^T + b_e. For steps of a few hundred tokens, whose experts' weights
// are to stream at the memory's speed while each is expanded once for all of an expert's rows.
//
// A weight times its block's scale, m 2^(s - 127), becomes m 2^(s - 115) in E5M2, which holds it
// exactly from s = 100 (2^-27) to 128; below, it is off by 2^-29 at most, above, NaN. Eight of them
// come by PRMT from eight bytes, the line of the block's scale in a table in shared memory.
// A row of activations is two E4M3 a column (e4m3_pairs.h), of which every block makes some rows
// while weights come; then all blocks meet. Columns 2 t and 2 t + 1 of B are high and low of token
// t. Under --activations fp8 it is one, made by a kernel before, and weights are relative to the
// least scale of their row (row_exponents.h), so that none is off or too large.
// NVFP4: FP8 has no room for a code times its block's scale, so codes are multiplied alone, and
// sums of 16 k by their scales in float32: columns 2 t and 2 t + 1 are the first and the last half
// of each 32 k, of high and of low apart (narrow_blocks_sm90.cuh), made by each block for itself.
//
// Sums: one chain over K in wgmma's accumulator, which keeps about 14 bits; of NVFP4 16 k in it,
// those in float32.
//
// A group is up to 32 columns of B of one expert. Each block takes a contiguous share of the tiles
// of 64 rows of all groups, equal by what a tile costs with its group's rows; of MXFP4 experts of
// many rows and of few take turns, so that the activations of a block's groups stand in shared
// memory together. Each of four warpgroups takes every fourth tile, a warp 16 rows of it; a warp
// besides brings it to shared memory by the copy engine, so that those that multiply do nothing
// else.
// E4M3 order of K: see gemm_fp8_sm90.cuh.
//
// gpt-oss-120b's moe_up and moe_down take 287 and 165 us with 256 tokens (H200, 2026-11-22);
// those in NVFP4: docs/lab/nvfp4.md. Lost, in MXFP4: deeper rings, smaller chunks, f16, groups of
// 48 columns: docs/lab/experts-of-a-batch.md.
#pragma once

#include "cuda/arrivals.cuh"
#include "ops/gpu_matmul/narrow_blocks_sm90.cuh"

namespace nibble::ops::gpu::sm90 {

// A warp for each of four warpgroups fetches; registers of a thread of either kind, of 512 for four
// that multiply and one that fetches.
inline constexpr int kNarrowThreads = kGemvThreads + kNarrowGroupsOfWarps * 32;
template <class X>
inline constexpr int kNarrowRegisters = X::kHasBlocks ? 104 : 112;
template <class X>
inline constexpr int kFetchRegisters = X::kHasBlocks ? 64 : 32;
template <class X>
inline constexpr int kNarrowTable = X::kHasBlocks ? 0 : 257 * 8;  // of lines, and one of ones

// What a tile costs: its bytes, and a thirtieth of that for every 8 columns of B.
template <class X>
struct NarrowCost {
  static constexpr bool kPaired = !X::kHasBlocks;  // to rank 513 experts takes long
  static __device__ __forceinline__ int of(int rows) {
    return rows == 0 ? 0 : 30 + (X::kOfRow * rows + 7) / 8;
  }
};

template <class X>
inline constexpr int kNarrowExperts = X::kHasBlocks ? kMaxExperts : kMaxCountedExperts;
template <class X>
using NarrowGroups = Groups<NarrowCost<X>, kNarrowExperts<X>>;

// Shared memory: rings from 0 on, then these.
struct NarrowMemory {
  int stages;      // of a ring, of NVFP4
  int group_rows;  // at most
  int columns;     // of activations at a time
  uint32_t table, factors, x, end;
};

// Op: as grouped_gemm's. If X is made here, all blocks must run at once: see cuda::meet().
template <int kUnits, class X, class Op>
__global__ void __launch_bounds__(kNarrowThreads, 1)
    gemm_narrow(const __grid_constant__ TileMatrix m, const __grid_constant__ NarrowMemory memory,
                const X rows, const __grid_constant__ Op op) {
  extern __shared__ __align__(128) uint8_t shared[];
  using Ring = NarrowRing<kUnits, X::kUnitBytes>;
  __shared__ NarrowGroups<X> groups;
  __shared__ __align__(8) uint64_t barriers[kNarrowGroupsOfWarps * Ring::kBarriers];
  __shared__ std::conditional_t<X::kHasBlocks, HeldRows, uint32_t[kGemvWarps]> made;
  const uint32_t base = cuda::shared_address(shared);
  const int warp = static_cast<int>(uniform(threadIdx.x / 32)), lane = threadIdx.x % 32,
            g = lane / 4;
  const uint32_t table = base + memory.table;
  const bool fetches = warp >= kGemvWarps;
  const int warpgroup = fetches ? warp - kGemvWarps : warp / 4;
  const auto ring_of = [&](int row_tile) {
    return Ring(base, cuda::shared_address(barriers), warpgroup, row_tile,
                X::kHasBlocks ? memory.stages : kNarrowStages<kUnits>);
  };
  if (fetches && lane == 0) ring_of(0).init();
  for (int i = threadIdx.x; i < kNarrowTable<X>; i += kNarrowThreads)
    shared[memory.table + i] = static_cast<uint8_t>(i < 2048 ? line_byte(i / 8, i % 8) : 1);
  const auto wait = [] {
    cuda::griddep_wait();
    cuda::griddep_launch_dependents();
  };
  if (!op.is_chosen_before) wait();

  const int experts = op.experts, tiles = m.row_tiles / 4;
  const int units = m.chunks * kUnits;  // of a row tile
  for (int e = threadIdx.x; e <= experts; e += kNarrowThreads)
    groups.offset[e] = __ldcg(op.offsets + e);
  __syncthreads();
  const int group_rows = X::kPlanes == 1 ? kNarrowGroupRows<X> : memory.group_rows;
  groups.count(experts, group_rows);
  const auto share = [&](int block) {
    return groups.share(block, gridDim.x, experts, group_rows, tiles);
  };
  const int end = share(blockIdx.x + lane % 2);
  const int first = uniform(__shfl_sync(~0u, end, 0)), last = uniform(__shfl_sync(~0u, end, 1));
  const auto group_at = [&](int i) { return groups.at(i, last, experts, group_rows, tiles); };
  if (fetches) {
    fewer_registers<kFetchRegisters<X>>();
    int rest = Ring::kTileBytes;
    if constexpr (X::kHasBlocks) rest -= (units * 64 - rows.cols) / 64 * X::kUnitBytes;
    NarrowWalk<Ring::kTileBytes, X::kHasBlocks, decltype(group_at)> walk{
        m, group_at, lane, first + warpgroup, last, rest};
    Ring ring = ring_of(lane);
    if (lane < 4)
      while (const uint8_t* chunk = walk.next()) ring.fill(chunk, walk.bytes());
    return;
  }
  more_registers<kNarrowRegisters<X>>();
  Ring ring = ring_of(warp % 4);
  if (op.is_chosen_before) wait();
  if constexpr (X::kIsMade) {
    make_columns(rows, units * 64, base + memory.x, made);
    narrow_barrier();
    if (threadIdx.x == 0) cuda::meet(rows.counter, gridDim.x);
  }

  // From memory, as in mma_digits.cuh's CodeTables: ptxas would copy a constant for every PRMT.
  const uint32_t ones = X::kHasBlocks ? 0 : cuda::load_shared_4(table + 2048);
  int item = first + warpgroup;
  float d[kNarrowColumns / 2];                    // the same registers for every width
  const int row_bytes = X::kPlanes * units * 64;  // of a column
  // Groups stand behind one another: where the next one begins, and its first column.
  const auto place_of = [&](int held, const Group& group) {
    return X::kHasBlocks ? HeldRows::place(held, group.rows) : held;
  };
  const auto columns_at = [&](int place) {
    return base + memory.x + (X::kHasBlocks ? place / 4 * 8 : place) * row_bytes;
  };
  const auto behind = [&](int place, const Group& group) {
    return place + (X::kHasBlocks ? group.rows : group_columns<X>(group));
  };
  const auto run = [&]<int kN>(const Group& group, int place) {
    const uint32_t factors =
        base + memory.factors + (X::kHasBlocks ? place / 4 * 16 : place * 4 / X::kOfRow);
    const uint32_t x = uniform(columns_of<kN>(columns_at(place)));
    const auto first_row = [&] { return ((item - group.first_item) * 4 + warp % 4) * 16; };
    if constexpr (X::kHasBlocks) {
      for (; item < group.end; item += kNarrowGroupsOfWarps) {
        const int row = first_row() + g / 2 * 2 + lane % 2 * 8;
        const int at = group.expert * m.row_tiles * 16 + row;
        touch(rows.row_scales + at);
        multiply_blocks<kN>(d, ring, m.chunks, x, units * 4 * kN);
        uint32_t bias = 0;
        if (m.bias != nullptr) bias = *reinterpret_cast<const uint32_t*>(m.bias + at);
        store_blocks<kN>(d, group, place % 4, row, bias,
                         *reinterpret_cast<const float2*>(rows.row_scales + at), factors, op);
      }
    } else {
      RowLines<X> lines{table};
      const auto fetch_lines = [&] {
        if (item < group.end) lines.fetch(rows, group.expert * m.row_tiles * 16 + first_row() + g);
      };
      fetch_lines();
      while (item < group.end) {
        const int row = first_row() + (g % 2 == 0 ? g : g + 7);
        uint32_t bias = 0;
        if (m.bias != nullptr)
          bias = *reinterpret_cast<const uint32_t*>(bias_of(m, group.expert, row));
        item += kNarrowGroupsOfWarps;
        lines.take();
        fetch_lines();
        multiply_tile<kN>(d, ring, m.chunks, x, lines.at, ones);
        store_tile<X, kN>(d, group, row, bias, factors, lines, op);
      }
    }
  };
  for (int begin = first; begin < last;) {
    narrow_barrier();  // of the groups before, everything has been read
    int end = begin;
    const int most = X::kHasBlocks ? memory.columns / X::kOfRow : memory.columns;
    [[maybe_unused]] int num_rows = 0;
    for (int held = 0; end < last;) {
      const Group group = group_at(end);
      const int place = place_of(held, group);
      if (behind(place, group) > most) break;
      const uint32_t to = columns_at(place), factors = base + memory.factors;
      if constexpr (X::kHasBlocks)
        hold_rows(made, num_rows, group, place, op, to, factors);
      else
        fetch_columns(rows, op, group, units, to, factors + place * 4 / X::kOfRow);
      held = behind(place, group);
      num_rows += group.rows;
      end = group.end;
    }
    if constexpr (X::kHasBlocks) {
      narrow_barrier();
      make_rows(made, num_rows, rows, units * 64);  // those of a rest's missing units are zeros
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    fence_async_proxy();
    narrow_barrier();
    for (int held = 0; begin < end;) {
      Group group = group_at(begin);
      group.end = uniform(group.end), group.rows = uniform(group.rows);
      const int columns = group_columns<X>(group), place = place_of(held, group);
      if (columns == 8)
        run.template operator()<8>(group, place);
      else if (columns == 16)
        run.template operator()<16>(group, place);
      else if (columns == 24)
        run.template operator()<24>(group, place);
      else
        run.template operator()<32>(group, place);
      held = behind(place, group);
      begin = group.end;
    }
  }
}

// Lays out a block's shared memory. Of NVFP4's rings there are as many stages as leave columns for
// the rows that most experts have, where tiles are long enough to want them.
template <class Ring, class X>
NarrowMemory lay_out_narrow(const X& x, int64_t cols, int64_t most_bytes) {
  constexpr int kStages = kNarrowStages<Ring::kUnits>;
  constexpr int64_t kStageBytes = kNarrowGroupsOfWarps * Ring::kStageBytes;
  const auto padded = [](int64_t bytes) {
    return static_cast<uint32_t>((bytes + 127) / 128 * 128);
  };
  const int64_t declared = sizeof(NarrowGroups<X>) + kNarrowGroupsOfWarps * Ring::kBarriers * 8 +
                           (X::kHasBlocks ? sizeof(HeldRows) : kGemvWarps * 4);
  const int64_t most = most_bytes - padded(declared);
  const int64_t row_bytes = X::kPlanes * cols;  // of a column, which has a factor at most besides
  NarrowMemory memory{.stages = kStages, .group_rows = kNarrowGroupRows<X>};
  if constexpr (X::kHasBlocks) {
    memory.group_rows = std::min(memory.group_rows, (x.usual_rows + 3) / 4 * 4);
    const int64_t columns = std::max(16, memory.group_rows * X::kOfRow) * (row_bytes + 4);
    const auto fit = static_cast<int>((most - columns) / kStageBytes);
    const auto wanted = static_cast<int>(cols / 64 / Ring::kUnits / 2);
    memory.stages = std::clamp(std::min(fit, wanted), kStages, Ring::kMost);
  }
  memory.table = padded(memory.stages * kStageBytes);
  memory.x = memory.table + padded(kNarrowTable<X>);
  const auto columns = (most - memory.x) / (row_bytes + 4) / 8 * 8;
  memory.columns = static_cast<int>(std::min<int64_t>(columns, 256));
  memory.group_rows = std::min(memory.group_rows, memory.columns / X::kOfRow);
  memory.factors = memory.x + memory.columns * static_cast<uint32_t>(row_bytes);
  memory.end = memory.factors + memory.columns * 4;
  return memory;
}

template <int kUnits, class X, class Op>
void launch_narrow_chunks(Ctx& cx, const Weight& weight, const X& x, const Op& op) {
  using Ring = NarrowRing<kUnits, X::kUnitBytes>;
  TileMatrix m = tile_matrix(weight, kUnits);
  if constexpr (X::kHasBlocks)
    m.chunks = static_cast<int>((weight.cols / 64 + kUnits - 1) / kUnits);
  const NarrowMemory memory =
      lay_out_narrow<Ring>(x, int64_t{m.chunks} * kUnits * 64, cx.kernels.gpu.smem_per_block_bytes);
  const unsigned grid = grid_of(cx, m.row_tiles / 4 * weight.experts);
  if constexpr (X::kIsMade) {  // all blocks meet; rows wait where columns are to stand
    CHECK(grid <= static_cast<unsigned>(cx.kernels.gpu.num_sms));
    CHECK((weight.cols + 511) / 512 * kGemvThreads * 16 <=
          static_cast<int64_t>(memory.factors - memory.x));
  }
  cuda::launch(cx.stream, gemm_narrow<kUnits, X, Op>,
               {.grid = dim3(grid),
                .block = dim3(kNarrowThreads),
                .smem_bytes = memory.end,
                .release = cuda::Release::kAfterWait},
               m, memory, x, op);
}

// See gemm_narrow. Of `x` op.row_of(slot) is a slot's row.
template <class X, class Op>
void launch_narrow(Ctx& cx, const Weight& weight, const X& x, const Op& op) {
  CHECK(weight.experts <= kNarrowExperts<X>);
  if constexpr (!X::kHasBlocks)
    with_chunk_units<5>(weight.cols,
                        [&]<int kUnits>() { launch_narrow_chunks<kUnits>(cx, weight, x, op); });
  else
    launch_narrow_chunks<4>(cx, weight, x, op);  // of which the last may lack some
}
// The same of MXFP4 and x [num_rows, cols] bf16, cols <= 4096.
template <class Op>
void launch_narrow(Ctx& cx, Scratch& scratch, const Weight& weight, const uint16_t* x,
                   int64_t num_rows, const Op& op) {
  PairColumns to{take_e4m3_pairs(scratch, num_rows, weight.cols)};
  to.x = x, to.rows = static_cast<int>(num_rows), to.counter = cx.counters;
  launch_narrow(cx, weight, to, op);
}

}  // namespace nibble::ops::gpu::sm90
