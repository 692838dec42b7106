// Dense GEMM by wgmma of a prompt's tokens with BF16 rows: y[t] = x[t] W^T + b. The copy engine
// brings both operands.
//
//   weights  in   [N, K] bf16, and bias [N] bf16 or none
//   x        in   [T, K] bf16
//   y        out  [T, N] f32, or with SwiGLU [T, N / 2] bf16; or [T, N] bf16, here and where other
//                 ranks find it
//
// K % 64 == 0, N % 16 == 0. A work item is kRows rows by kN tokens. One thread fills a ring of
// stages of 64 k, two warpgroups multiply 64 rows each. Items of some 2,048 tokens come before the
// next tokens: so many rows of x stay in L2 while all rows of W meet them. Sums are one chain over
// K for every element: the same whatever else is in the step.
//
// What binds is 700 W: an H200 in a prompt of 8,192 tokens of Llama-3.1-8B runs at 1.25 GHz. What
// was measured, and what lost (pairs of blocks that share weights): docs/lab/dense-products.md.
#pragma once

#include <algorithm>

#include "cuda/bulk_copy.cuh"
#include "cuda/launch.cuh"
#include "cuda/tensor_map.cuh"
#include "ops/all_reduce/peer_exchange.cuh"
#include "ops/gpu_matmul/gemm_dense_sm90.h"
#include "ops/gpu_matmul/gemm_items.h"
#include "ops/gpu_matmul/gemm_store_sm90.cuh"

namespace nibble::ops::gpu::sm90 {

struct DenseParams : GemmArgs {
  CUtensorMap w_boxes, x_boxes;         // of 128 rows, of 256 tokens; 64 k
  CUtensorMap y_boxes;                  // of 32 tokens: 32 rows of float32, or 64 of bf16
  int row_tiles, token_tiles, at_once;  // token tiles: all, and those that meet rows together
};

// Where y goes besides: of each other rank, by both slots of an exchange of rows.
struct SendingParams : DenseParams {
  CUtensorMap sent_boxes[PeerMemory::kMostRanks - 1][2];
  int others;
  const uint32_t* counts;  // PeerMemory's
};

template <GemmOut kOut_>
struct DenseShape {
  static constexpr GemmOut kOut = kOut_;
  static constexpr bool kSends = kOut == GemmOut::kBF16;
  using Params = std::conditional_t<kSends, SendingParams, DenseParams>;
  static constexpr int kN = kDenseTokens, kGroups = 2, kRows = 64 * kGroups;
  static_assert(kRows == kDenseRows);
  static constexpr int kThreads = 128 * (1 + kGroups);
  // Of the 64 K of an SM: what the filling warpgroup gives away, the others get.
  static constexpr int kFillRegisters = 40, kMultiplyRegisters = 232;
  static constexpr int kWBytes = kRows * 128, kStageBytes = kWBytes + kN * 128;
  // Buffers of a warpgroup: float32 of 64 rows by 32 tokens are two boxes. What is sent may wait
  // for the link while the next item is multiplied.
  static constexpr int kBuffers = kSends ? 8 : 2;
  static constexpr int kBufferBytes = (kOut == GemmOut::kF32 ? 2 : 1) * kStagedBytes;
  static constexpr int kStagedOfGroup = kBuffers * kBufferBytes;
  static constexpr int kOutputBytes = kGroups * kStagedOfGroup;
  static constexpr int kStages = (227 * 1024 - 1024 - 128 - kOutputBytes) / kStageBytes;
  static constexpr int kStaged = kStages * kStageBytes, kBarriers = kStaged + kOutputBytes;
  static constexpr int kBytes = 1024 + kBarriers + 2 * kStages * 8;
};

// A box from shared memory, as bulk_store(): what lies beyond the matrix is left out.
__device__ __forceinline__ void store_box(const CUtensorMap& map, int x, int y, uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
          &map),
      "r"(x), "r"(y), "r"(from)
      : "memory");
}

// All, before their thread ends: they are where they belong.
__device__ __forceinline__ void store_wait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

template <typename S>
struct DenseBlock {
  const typename S::Params& g;
  uint32_t smem;
  int slot = 0;
  uint32_t phase = 0;
  uint32_t exchange = 0;  // in which y is sent

  __device__ __forceinline__ uint32_t w_at(int s) const { return smem + s * S::kStageBytes; }
  __device__ __forceinline__ uint32_t x_at(int s) const { return w_at(s) + S::kWBytes; }
  __device__ __forceinline__ uint32_t full(int s) const { return smem + S::kBarriers + s * 8; }
  __device__ __forceinline__ uint32_t empty(int s) const { return full(S::kStages + s); }
  __device__ __forceinline__ void next() {
    if (++slot == S::kStages) slot = 0, phase ^= 1;
  }

  __device__ __forceinline__ GemmItem item(int i) const {
    const int of_part = g.at_once * g.row_tiles, part = i / of_part;
    const int tiles = min(g.at_once, g.token_tiles - part * g.at_once), j = i - part * of_part;
    GemmItem it{};
    it.row0 = j / tiles * S::kRows;
    it.slot0 = (part * g.at_once + j % tiles) * S::kN;
    it.valid = min(S::kN, g.num_slots - it.slot0);
    return it;
  }

  // By one thread.
  __device__ __forceinline__ void fill(const GemmItem& it) {
    for (int u = 0; u < g.cols / 64; ++u) {
      barrier_wait(empty(slot), phase ^ 1);
      barrier_expect(full(slot), S::kStageBytes);
      copy_box(w_at(slot), g.w_boxes, u * 64, it.row0, full(slot));
      copy_box(x_at(slot), g.x_boxes, u * 64, it.slot0, full(slot));
      next();
    }
  }

  // By a warp, behind its last read of stage s.
  __device__ __forceinline__ void release(int s) {
    if (threadIdx.x % 32 == 0) barrier_arrive(empty(s));
  }

  __device__ __forceinline__ void multiply(const GemmItem& it, int wg, Staged& staged) {
    float d[S::kN / 2];
    int previous = slot;
    wgmma_fence();  // aligned: the compiler knows a warp to be together, and the loop to be uniform
    for (int u = 0; u < g.cols / 64; ++u) {
      barrier_wait_together(full(slot), phase);
      const uint64_t a = swizzled_128(uniform(w_at(slot) + wg * 64 * 128));
      const uint64_t b = swizzled_128(uniform(x_at(slot)));
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) wgmma_bf16<S::kN>(d, a + 2 * k, b + 2 * k, u + k > 0);
      wgmma_commit();
      wgmma_wait<1>();
      if (u > 0) release(previous);
      previous = slot;
      next();
    }
    wgmma_wait<0>();
    __syncwarp();
    release(previous);
    const int row0 = it.row0 + wg * 64, of_warp = row0 + threadIdx.x / 32 % 4 * 16;
    const RowFactors f = factors(min(of_warp, g.rows - 16));
    if constexpr (S::kSends)
      send(it, row0, staged, f, d);
    else if constexpr (S::kOut == GemmOut::kSwiglu)
      store_lines<S::kOut, S::kN / 8>(g, it, row0, staged, f, [&](int j) {
        const float* v = &d[j * 4];
        return float4{v[0], v[1], v[2], v[3]};
      });
    else
      store(it, row0, staged, f, d);
  }

  // Of 16 rows from row0 on.
  __device__ __forceinline__ RowFactors factors(int row0) const {
    RowFactors f{1, 1, 0, 0};
    if (g.bias != nullptr) {
      const uint16_t* at = g.bias + row0 + threadIdx.x % 32 / 4;
      f.b0 = __uint_as_float(at[0] << 16), f.b1 = __uint_as_float(at[8] << 16);
    }
    return f;
  }

  // float32, by a warpgroup: from shared memory by the copy engine, while the next item's products
  // are made.
  __device__ __forceinline__ void store(const GemmItem& it, int row0, Staged& staged,
                                        const RowFactors& f, const float (&d)[S::kN / 2]) {
    const int t = threadIdx.x % 128, warp = t / 32, row = t % 32 / 4;
    uint32_t to[2][2];  // of rows `row` and + 8, columns 2p and + 1, as the copy engine turns them
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int token = 2 * (t % 4) + e, chunk = warp % 2 * 4 + i * 2 + row / 4;
        to[i][e] = warp / 2 * kStagedBytes + token * 128 + ((chunk ^ token) << 4) + row % 4 * 4;
      }
#pragma unroll
    for (int j0 = 0; j0 < S::kN / 8; j0 += 4) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* const of = &d[4 * (j0 + j)];
        const float4 v = f.of({of[0], of[1], of[2], of[3]});
        const uint32_t at = staged.here() + j * 1024;
        store_shared(at + to[0][0], v.x), store_shared(at + to[0][1], v.y);
        store_shared(at + to[1][0], v.z), store_shared(at + to[1][1], v.w);
      }
      cuda::bulk_store_fence();
      if (t == 0) cuda::bulk_store_wait_read<0>();  // the other buffer is free behind the barrier
      warpgroup_barrier(staged.barrier);
      if (t == 0) {
        store_box(g.y_boxes, row0, it.slot0 + 8 * j0, staged.here());
        store_box(g.y_boxes, row0 + 32, it.slot0 + 8 * j0, staged.here() + kStagedBytes);
        cuda::bulk_store_commit();
      }
      staged.turn ^= 2 * kStagedBytes;
    }
  }

  // bf16, likewise, to all ranks: boxes of 64 rows.
  __device__ __forceinline__ void send(const GemmItem& it, int row0, Staged& staged,
                                       const RowFactors& f, const float (&d)[S::kN / 2]) {
    const int t = threadIdx.x % 128, warp = t / 32, lane = t % 32, i = lane % 8;
    const uint32_t to = (lane / 16 * 8 + i) * 128 + (((warp * 2 + lane / 8 % 2) ^ i) << 4);
#pragma unroll
    for (int j0 = 0; j0 < S::kN / 8; j0 += 4) {
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        const float* const of = &d[4 * (j0 + j)];
        const float4 a = f.of({of[0], of[1], of[2], of[3]});
        const float4 b = f.of({of[4], of[5], of[6], of[7]});
        store_turned_8x8(staged.here() + to + j * 1024, pack(a.x, a.y), pack(a.z, a.w),
                         pack(b.x, b.y), pack(b.z, b.w));
      }
      cuda::bulk_store_fence();
      if (t == 0) cuda::bulk_store_wait_read<S::kBuffers - 2>();  // the next buffer is free, too
      warpgroup_barrier(staged.barrier);
      if (t == 0) {
        for (int r = 0; r < g.others; ++r)
          store_box(g.sent_boxes[r][exchange % 2], row0, it.slot0 + 8 * j0, staged.here());
        store_box(g.y_boxes, row0, it.slot0 + 8 * j0, staged.here());
        cuda::bulk_store_commit();
      }
      staged.turn = (staged.turn + kStagedBytes) % S::kStagedOfGroup;
    }
  }
  static __device__ __forceinline__ void store_shared(uint32_t to, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
  }
};

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    dense_kernel(const __grid_constant__ typename S::Params g) {
  extern __shared__ char raw[];
  DenseBlock<S> block{g, shared_address(aligned_1024(raw))};
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::kStages; ++s) {
      barrier_init(block.full(s), 1);
      barrier_init(block.empty(s), 4 * S::kGroups);
    }
    barrier_init_fence();
  }
  __syncthreads();
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  if constexpr (S::kSends) block.exchange = next_rows(g.counts);
  const int items = g.row_tiles * g.token_tiles;
  if (threadIdx.x < 128) {
    fewer_registers<S::kFillRegisters>();
    if (threadIdx.x == 0)
      for (int i = blockIdx.x; i < items; i += gridDim.x) block.fill(block.item(i));
  } else {
    more_registers<S::kMultiplyRegisters>();
    const int wg = threadIdx.x / 128 - 1;
    Staged staged{block.smem + S::kStaged + wg * S::kStagedOfGroup, 1 + wg};
    for (int i = blockIdx.x; i < items; i += gridDim.x) block.multiply(block.item(i), wg, staged);
    if (S::kSends && threadIdx.x % 128 == 0) store_wait();
    if (S::kOut == GemmOut::kF32 && threadIdx.x % 128 == 0) cuda::bulk_store_wait_read<0>();
  }
}

}  // namespace nibble::ops::gpu::sm90
