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
// of each 32 k, and there are two matrices B, of high and of low (narrow_columns_sm90.cuh).
//
// Sums: one chain over K in wgmma's accumulator, which keeps about 14 bits; of NVFP4 16 k in it,
// those in float32.
//
// A group is up to 32 columns of B of one expert. Each block takes a contiguous share of the tiles
// of 64 rows of all groups, equal by what a tile costs with its group's rows; experts of many rows
// and of few take turns, so that the activations of a block's groups stand in shared memory
// together. Each of four warpgroups takes every fourth tile, a warp 16 rows of it; a warp besides
// brings it to shared memory by the copy engine, so that those that multiply do nothing else.
// E4M3 order of K: see gemm_fp8_sm90.cuh.
//
// gpt-oss-120b's moe_up and moe_down take 287 and 165 us with 256 tokens (H200, 2026-11-22);
// Qwen3-30B-A3B's in NVFP4: docs/lab/nvfp4.md. Lost: deeper rings, smaller chunks, f16, groups of
// 48 columns: docs/lab/experts-of-a-batch.md.
#pragma once

#include "cuda/arrivals.cuh"
#include "ops/gpu_matmul/narrow_tiles_sm90.cuh"

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
  static constexpr bool kPaired = true;
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
  uint32_t table, factors, x, end;
  int columns;     // of activations at a time
  int group_rows;  // at most
};

// Of the warps that multiply.
__device__ __forceinline__ void narrow_barrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(kGemvThreads) : "memory");
}

// Op: as grouped_gemm's. If X is made here, all blocks must run at once: see cuda::meet().
template <int kUnits, class X, class Op>
__global__ void __launch_bounds__(kNarrowThreads, 1)
    gemm_narrow(const __grid_constant__ TileMatrix m, const __grid_constant__ NarrowMemory memory,
                const X rows, const __grid_constant__ Op op) {
  extern __shared__ __align__(128) uint8_t shared[];
  using Ring = NarrowRing<kUnits, X::kUnitBytes>;
  __shared__ NarrowGroups<X> groups;
  __shared__ __align__(8) uint64_t barriers[kNarrowGroupsOfWarps * Ring::kBarriers];
  __shared__ uint32_t largest[kGemvWarps];
  const uint32_t base = cuda::shared_address(shared);
  const int warp = static_cast<int>(uniform(threadIdx.x / 32)), lane = threadIdx.x % 32,
            g = lane / 4;
  const uint32_t table = base + memory.table;
  const bool fetches = warp >= kGemvWarps;
  const int warpgroup = fetches ? warp - kGemvWarps : warp / 4;
  const auto ring_of = [&](int row_tile) {
    return Ring(base, cuda::shared_address(barriers), warpgroup, row_tile);
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
    NarrowWalk<Ring::kTileBytes, decltype(group_at)> walk{m, group_at, lane, first + warpgroup,
                                                          last};
    Ring ring = ring_of(lane);
    if (lane < 4)
      while (const uint8_t* chunk = walk.next()) ring.fill(chunk);
    return;
  }
  more_registers<kNarrowRegisters<X>>();
  Ring ring = ring_of(warp % 4);
  if (op.is_chosen_before) wait();
  if constexpr (X::kIsMade) {
    make_columns(rows, m.chunks * kUnits * 64, base + memory.x, largest);
    narrow_barrier();
    if (threadIdx.x == 0) cuda::meet(rows.counter, gridDim.x);
  }

  // From memory, as in mma_digits.cuh's CodeTables: ptxas would copy a constant for every PRMT.
  const uint32_t ones = X::kHasBlocks ? 0 : cuda::load_shared_4(table + 2048);
  int item = first + warpgroup;
  float d[kNarrowColumns / 2];                                // the same registers for every width
  const int row_bytes = X::kPlanes * m.chunks * kUnits * 64;  // of a column
  const auto run = [&]<int kN>(const Group& group, int held) {
    const uint32_t factors = base + memory.factors + held * 4 / X::kOfRow;
    const uint32_t x = uniform(columns_of<kN>(base + memory.x + held * row_bytes));
    const auto first_row = [&] { return ((item - group.first_item) * 4 + warp % 4) * 16; };
    if constexpr (X::kHasBlocks) {
      for (; item < group.end; item += kNarrowGroupsOfWarps) {
        const int row = first_row() + g / 2 * 2 + lane % 2 * 8;
        const int at = group.expert * m.row_tiles * 16 + row;
        touch(rows.row_scales + at);
        multiply_blocks<kN>(d, ring, m.chunks, x, m.chunks * kUnits * 4 * kN);
        uint32_t bias = 0;
        if (m.bias != nullptr) bias = *reinterpret_cast<const uint32_t*>(m.bias + at);
        store_blocks<kN>(d, group, row, bias,
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
    for (int held = 0; end < last;) {
      const Group group = group_at(end);
      if (held + group_columns<X>(group) > memory.columns) break;
      fetch_columns(rows, op, group, m.chunks * kUnits, base + memory.x + held * row_bytes,
                    base + memory.factors + held * 4 / X::kOfRow);
      held += group_columns<X>(group);
      end = group.end;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    fence_async_proxy();
    narrow_barrier();
    for (int held = 0; begin < end;) {
      Group group = group_at(begin);
      group.end = uniform(group.end), group.rows = uniform(group.rows);
      const int columns = group_columns<X>(group);
      if (columns == 8)
        run.template operator()<8>(group, held);
      else if (columns == 16)
        run.template operator()<16>(group, held);
      else if (columns == 24)
        run.template operator()<24>(group, held);
      else
        run.template operator()<32>(group, held);
      held += columns;
      begin = group.end;
    }
  }
}

// See gemm_narrow. Of `x` op.row_of(slot) is a slot's row.
template <class X, class Op>
void launch_narrow(Ctx& cx, const Weight& weight, const X& x, const Op& op) {
  CHECK(weight.experts <= kNarrowExperts<X>);
  with_chunk_units<X::kHasBlocks ? 4 : 5>(weight.cols, [&]<int kUnits>() {
    using Ring = NarrowRing<kUnits, X::kUnitBytes>;
    const TileMatrix m = tile_matrix(weight, kUnits);
    const auto padded = [](int64_t bytes) {
      return static_cast<uint32_t>((bytes + 127) / 128 * 128);
    };
    NarrowMemory memory{};
    memory.table = padded(int64_t{kNarrowGroupsOfWarps} * Ring::kBytes);
    memory.x = memory.table + padded(kNarrowTable<X>);
    const int64_t declared =
        sizeof(NarrowGroups<X>) + kNarrowGroupsOfWarps * Ring::kBarriers * 8 + kGemvWarps * 4;
    const int64_t free = cx.kernels.gpu.smem_per_block_bytes - padded(declared) - memory.x;
    // A column takes its codes and a factor, at most.
    const int64_t row_bytes = X::kPlanes * weight.cols;
    memory.columns = static_cast<int>(std::min<int64_t>(free / (row_bytes + 4) / 8 * 8, 256));
    memory.group_rows = std::min(kNarrowGroupRows<X>, memory.columns / X::kOfRow);
    memory.factors = memory.x + memory.columns * static_cast<uint32_t>(row_bytes);
    memory.end = memory.factors + memory.columns * 4;
    const unsigned grid = grid_of(cx, m.row_tiles / 4 * weight.experts);
    if constexpr (X::kIsMade) {  // all blocks meet; rows wait where columns are to stand
      CHECK(grid <= static_cast<unsigned>(cx.kernels.gpu.num_sms));
      CHECK((weight.cols + 511) / 512 * kGemvThreads * 16 <= memory.columns * row_bytes);
    }
    cuda::launch(cx.stream, gemm_narrow<kUnits, X, Op>,
                 {.grid = dim3(grid),
                  .block = dim3(kNarrowThreads),
                  .smem_bytes = memory.end,
                  .release = cuda::Release::kAfterWait},
                 m, memory, x, op);
  });
}
// The same of x [num_rows, cols] bf16, cols <= 4096.
template <class Op>
void launch_narrow(Ctx& cx, Scratch& scratch, const Weight& weight, const uint16_t* x,
                   int64_t num_rows, const Op& op) {
  const auto columns = [&]<class X>(X to) {
    static_cast<E4m3Pairs&>(to) = take_e4m3_pairs(scratch, weight.format, num_rows, weight.cols);
    to.x = x, to.rows = static_cast<int>(num_rows), to.counter = cx.counters;
    return to;
  };
  if (weight.format != Format::kNvfp4) return launch_narrow(cx, weight, columns(PairColumns{}), op);
  BlockColumns to = columns(BlockColumns{});
  to.row_scales = weight.row_scales;
  launch_narrow(cx, weight, to, op);
}

}  // namespace nibble::ops::gpu::sm90
