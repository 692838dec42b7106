// Dense products of up to 64 tokens with BF16 rows by wgmma: y[t] = x[t] W^T + b. Weights and x
// both stream, by the copy engine.
//
//   weights  in   [N, K] bf16, and bias [N] bf16 or none
//   x        in   [T, K] bf16
//   Op       out  store(): the sums of two rows, bias included
//
// N % 16 == 0, K % 64 == 0. A block takes a range of rows and a share of K, both so that as many
// blocks as there are SMs have the same to read (plan_rows_stream()). One thread fills a ring of
// stages of 64 k; weights are on their way before griddep_wait(). A warpgroup multiplies 64 rows;
// of the last one some may be no rows of the block. Shares of K are added up in L2 by the
// block that comes last (shares_sm90.cuh): meeting as NVFP4's do takes a microsecond more.
//
// Sums: one chain over K for each share, then shares in sequence: the same for every token of a
// step, whatever the others hold.
//
// Bytes: 2 N K + T (2 K + 4 N); Llama-3.1-8B's second half of an MLP (4,096 x 14,336): 117 MB, 27
// us of an H200's 4.4 TB/s; reached with 8 tokens 29.8, with 64 34.1, and its first half (28,672 x
// 4,096, 235 MB), norm included, 57.8 and 62.6 (`nibble bench ops`, 2026-11-23).
#pragma once

#include <algorithm>

#include "cuda/launch.cuh"
#include "cuda/mma_sm90.cuh"
#include "cuda/tensor_map.cuh"
#include "ops/ctx.h"
#include "ops/gpu_matmul/shares_sm90.cuh"
#include "ops/gpu_matmul/stream_plan.h"
#include "ops/scratch.h"
#include "ops/weight.h"

namespace nibble::ops::gpu::sm90 {

using namespace nibble::cuda::sm90;

inline constexpr int kRowsStages = 12;             // at most
inline constexpr int kRowsRingBytes = 216 * 1024;  // at most

struct RowsArgs {
  const uint16_t* bias;  // or none
  int rows, num_units, tokens;
  int of_block;  // rows
  int stages;
  Shares shares;
};

// A block's ring, and what it has of the product.
template <int kN>
struct RowsBlock {
  const RowsArgs& g;
  uint32_t base, full, empty;
  int row0, begin, num_units;

  __device__ __forceinline__ int weight_bytes() const { return g.of_block * 128; }
  __device__ __forceinline__ int stage_bytes() const { return weight_bytes() + kN * 128; }
  __device__ __forceinline__ uint32_t at(int slot) const { return base + slot * stage_bytes(); }

  __device__ __forceinline__ void fetch_weights(const CUtensorMap& w, int unit, int slot) const {
    barrier_expect(full + slot * 8, stage_bytes());
    copy_box(at(slot), w, (begin + unit) * 64, row0, full + slot * 8);
  }
  __device__ __forceinline__ void fetch_x(const CUtensorMap& x, int unit, int slot) const {
    copy_box(at(slot) + weight_bytes(), x, (begin + unit) * 64, 0, full + slot * 8);
  }
  // By one thread.
  __device__ __forceinline__ void fill(const CUtensorMap& w, const CUtensorMap& x) const {
    const int first = min(g.stages, num_units);
    for (int u = 0; u < first; ++u) fetch_weights(w, u, u);
    cuda::griddep_wait();
    for (int u = 0; u < first; ++u) fetch_x(x, u, u);
    int slot = 0;
    uint32_t phase = 0;
    for (int u = first; u < num_units; ++u) {
      barrier_wait(empty + slot * 8, phase);
      fetch_weights(w, u, slot);
      fetch_x(x, u, slot);
      if (++slot == g.stages) slot = 0, phase ^= 1;
    }
  }
  // By a warpgroup: 64 rows by kN tokens.
  __device__ __forceinline__ void multiply(float (&d)[kN / 2]) const {
    const uint32_t mine = threadIdx.x / 128 * 64 * 128;
    int slot = 0, previous = 0;
    uint32_t phase = 0;
    wgmma_fence();
    for (int u = 0; u < num_units; ++u) {
      barrier_wait_together(full + slot * 8, phase);
      const uint64_t a = swizzled_128(uniform(at(slot) + mine));
      const uint64_t b = swizzled_128(uniform(at(slot) + weight_bytes()));
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) wgmma_bf16<kN>(d, a + 2 * k, b + 2 * k, u + k > 0);
      wgmma_commit();
      wgmma_wait<1>();
      if (u > 0 && threadIdx.x % 32 == 0) barrier_arrive(empty + previous * 8);
      previous = slot;
      if (++slot == g.stages) slot = 0, phase ^= 1;
    }
    wgmma_wait<0>();
  }
};

// Threads: a warpgroup for every 64 rows of a block, and a warp that fills.
template <int kN, class Op>
__global__ void __launch_bounds__(4 * 128 + 32, 1)
    gemm_rows_kernel(const __grid_constant__ RowsArgs g, const __grid_constant__ CUtensorMap w,
                     const __grid_constant__ CUtensorMap x, const __grid_constant__ Op op) {
  extern __shared__ char raw[];
  __shared__ __align__(8) uint64_t full[kRowsStages], empty[kRowsStages];
  cuda::griddep_launch_dependents();
  const int tile = static_cast<int>(blockIdx.x) / g.shares.count;
  const int share = static_cast<int>(blockIdx.x) % g.shares.count;
  const int threads = static_cast<int>(blockDim.x) - 32;  // that multiply
  const int begin = g.num_units * share / g.shares.count;
  const uint32_t start = shared_address(raw);
  const RowsBlock<kN> block{g,
                            start + (1024 - start % 1024) % 1024,
                            shared_address(full),
                            shared_address(empty),
                            tile * g.of_block,
                            begin,
                            g.num_units * (share + 1) / g.shares.count - begin};
  if (threadIdx.x == 0) {
    for (int s = 0; s < g.stages; ++s) {
      barrier_init(block.full + s * 8, 1);
      barrier_init(block.empty + s * 8, threads / 32);
    }
    barrier_init_fence();
  }
  __syncthreads();
  float d[kN / 2] = {};
  if (static_cast<int>(threadIdx.x) >= threads) {
    if (static_cast<int>(threadIdx.x) == threads) block.fill(w, x);
    __syncwarp();
  } else {
    block.multiply(d);
  }
  cuda::griddep_wait();  // of every thread that stores
  if (g.shares.count > 1 && !add_shares_last<kN>(g.shares, tile, share, threads, d)) return;
  const int in_block = static_cast<int>(threadIdx.x) / 32 * 16, first = block.row0 + in_block;
  if (in_block >= g.of_block || first >= g.rows) return;
  RowEnds ends;
  ends.read_bias(g.bias, first + static_cast<int>(threadIdx.x) % 32 / 4);
  store_sums<kN>(d, {}, ends, first, g.tokens, op);
}

template <int kN, class Op>
void launch_rows_of(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x, int tokens,
                    const Op& op) {
  const StreamPlan plan = plan_rows_stream(w.rows, w.cols, kN, cx.kernels.gpu.num_sms);
  RowsArgs args{.bias = w.bias,
                .rows = static_cast<int>(w.rows),
                .num_units = static_cast<int>(w.cols / 64),
                .tokens = tokens,
                .of_block = plan.of_block,
                .shares = {.count = plan.shares}};
  const int groups = (plan.of_block + 63) / 64, stage_bytes = (plan.of_block + kN) * 128;
  const int tiles = (args.rows + plan.of_block - 1) / plan.of_block;
  // The last warpgroup reads on to 64 rows.
  const int beyond = std::max(0, groups * 64 * 128 - stage_bytes);
  args.stages = std::min(kRowsStages, (kRowsRingBytes - beyond) / stage_bytes);
  if (plan.shares > 1) {
    args.shares.parts = scratch.take<float4>(plan.blocks * groups * 64 * kN / 4);
    args.shares.counters = cx.counters;
    CHECK(tiles * plan.shares <= cx.kernels.gpu.num_sms);
  }
  const auto map = [&](const void* data, int64_t rows, int box_rows) {
    return cuda::tensor_map({.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                             .data = data,
                             .cols = static_cast<uint64_t>(w.cols),
                             .rows = static_cast<uint64_t>(rows),
                             .pitch_bytes = static_cast<uint64_t>(2 * w.cols),
                             .box_cols = 64,
                             .box_rows = static_cast<uint32_t>(box_rows),
                             .swizzle = CU_TENSOR_MAP_SWIZZLE_128B});
  };
  // Never two blocks on an SM: see gemv.cuh.
  const int bytes = std::max(args.stages * stage_bytes + beyond, 115 * 1024) + 1024;
  cuda::launch(cx.stream, gemm_rows_kernel<kN, Op>,
               {.grid = dim3(static_cast<unsigned>(tiles * plan.shares)),
                .block = dim3(static_cast<unsigned>(groups * 128 + 32)),
                .smem_bytes = static_cast<size_t>(bytes)},
               args, map(w.codes, w.rows, plan.of_block), map(x, tokens, kN), op);
}

// op.store() of x [tokens, K] W^T + b, up to 64 tokens.
template <class Op>
void launch_rows_product(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x, int tokens,
                         const Op& op) {
  if (tokens == 0) return;
  CHECK(tokens <= 64 && w.experts == 1 && w.layout == Layout::kRows);
  CHECK(w.format == Format::kBF16 && w.cols % 64 == 0 && w.rows % 16 == 0);
  const int width = stream_width(tokens);
  if (width == 16) return launch_rows_of<16>(cx, scratch, w, x, tokens, op);
  if (width == 32) return launch_rows_of<32>(cx, scratch, w, x, tokens, op);
  launch_rows_of<64>(cx, scratch, w, x, tokens, op);
}

}  // namespace nibble::ops::gpu::sm90
