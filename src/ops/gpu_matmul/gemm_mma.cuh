// Grouped GEMM by mma.sync in bf16 for many rows, for any GPU that is served:
// y[slot] = x[row of slot] W_e^T + b_e, e the slot's expert. Weights in kTiles16x64 (MXFP4, NVFP4,
// FP8, INT4), which become bf16 in registers (unit.cuh), or, of dense matrices, in bf16 rows.
//
//   weights  in   tiles: [E][N / 16][K / 64] units, see formats/layout.h, of some formats also
//                 [E][N] f32; bf16: [N][K]
//   x        in   [*, K] bf16; token, offsets, bias: as in gemm_sm90.cuh
//   y        out  [slots, N] bf16 or f32; with SwiGLU [slots, N / 2] bf16; of kQkv q, k and v are
//                 turned and stored
//
// K % 64 == 0, N % 16 == 0; scales as gemm_sm90.cuh's. A work item is 128 rows of one expert and up
// to 128 slots; a block takes every gridDim-th. Four warps fill a ring of stages of 64 k, eight
// multiply, each 32 rows by half of the slots. A warp's two tiles of 16 rows lie 32 apart: what
// turns together meets in a lane. Sums are one chain over K: the same whatever else is in the step.
//
// Bytes: the weights' + slots (2 K + 2 N). Made for a GB10 (projected: 1,024 FLOP a
// clock and SM, 2,048 clocks a stage of 128 slots); on a Hopper GPU wgmma is several times as fast,
// and this runs in tests alone.
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/bf16.cuh"
#include "cuda/launch.cuh"
#include "cuda/mbarrier.cuh"
#include "cuda/mma_bf16.cuh"
#include "cuda/mma_digits.cuh"
#include "ops/gpu_matmul/gemm_items.h"
#include "ops/gpu_matmul/gemm_schedule.cuh"
#include "ops/gpu_matmul/gemm_sm90.h"
#include "ops/gpu_matmul/unit.cuh"
#include "ops/moe_up/swiglu.cuh"
#include "ops/norm_qkv/store_qkv.cuh"

namespace nibble::ops::gpu::mma {

using sm90::GemmItem, sm90::GemmSchedule;

template <Format kFormat, GemmOut kOut_>
struct MmaShape {
  static constexpr GemmOut kOut = kOut_;
  static constexpr bool kHasTiles = kFormat != Format::kBF16;
  using Unit = gpu::Unit<kHasTiles ? kFormat : Format::kMxfp4>;  // of rows: not looked at
  static constexpr bool kHasRowScales = kHasTiles && Unit::kHasRowScales;
  static constexpr bool kIsInt4 = kFormat == Format::kInt4G32 || kFormat == Format::kInt4G128;
  static constexpr int kRows = 128, kMaxN = 128, kStages = kHasTiles && Unit::kHasNibbles ? 4 : 3;
  static constexpr int kFillThreads = 128, kMultiplyThreads = 256;
  static constexpr int kThreads = kFillThreads + kMultiplyThreads;
  static constexpr int kWBytes = kHasTiles ? kRows / 16 * Unit::kBytes : kRows * 128;
  static constexpr int kXBytes = kMaxN * 128;
  static constexpr int kX = 0, kW = kStages * kXBytes;  // chunks of x's rows are swizzled
  static constexpr int kBarriers = kW + kStages * kWBytes;
  static constexpr int kExperts = kHasTiles ? kMaxExperts : 1;
  static constexpr int kLists = kBarriers + 2 * kStages * 8;
  // The schedule's place for all items is that of kMaxExperts.
  static constexpr int kBytes = kLists + (2 * kExperts + kMaxExperts + 1) * 4;
  static_assert(kBytes <= 99 * 1024);
};

struct MmaParams : GemmArgs {
  const uint8_t* weights;
};

template <typename S>
struct MmaBlock {
  using Unit = typename S::Unit;
  const MmaParams& g;
  char* base;  // of shared memory
  uint32_t smem = cuda::shared_address(base);
  int slot = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ uint32_t x_at(int s) const { return smem + s * S::kXBytes; }
  __device__ __forceinline__ uint32_t w_at(int s) const { return smem + S::kW + s * S::kWBytes; }
  __device__ __forceinline__ uint32_t full(int s) const { return smem + S::kBarriers + s * 8; }
  __device__ __forceinline__ uint32_t empty(int s) const { return full(s) + S::kStages * 8; }
  __device__ __forceinline__ void next() {
    if (++slot == S::kStages) slot = 0, phase ^= 1;
  }

  // One item by the filling warps: a slot's 64 k, and a row's of bf16, by eight threads; of a tile
  // a warp moves the codes, some threads the scales.
  __device__ __forceinline__ void fill(const GemmItem& it, int t) {
    const int units = g.cols / 64, last = g.rows - it.row0 - 1, chunk = t % 8;
    const uint32_t place = t / 8 * 128 + ((chunk ^ (t / 8 % 8)) << 4);
    uint32_t rows[S::kMaxN / 16];  // where rows of x begin, in 16 bytes
#pragma unroll
    for (int i = 0; i < S::kMaxN / 16; ++i) {
      const int s = it.slot0 + min(t / 8 + 16 * i, it.valid - 1);
      const int row = g.token != nullptr ? g.token[s] : s;
      rows[i] = static_cast<uint32_t>(row) * (g.cols / 8) + chunk;
    }
    const uint8_t* w = g.weights;
    if constexpr (S::kHasTiles)
      w += (static_cast<int64_t>(it.expert) * (g.rows / 16) + it.row0 / 16) * units * Unit::kBytes;
    else
      w += (static_cast<int64_t>(it.row0) * g.cols + chunk * 8) * 2;
    const auto* x = static_cast<const uint4*>(g.x);
    for (int u = 0; u < units; ++u, x += 8, next()) {
      cuda::barrier_wait(empty(slot), phase ^ 1);
      if constexpr (S::kHasTiles) {
        constexpr int kOfScales = Unit::kScaleBytes / 16;
        const int tile_bytes = units * Unit::kBytes;
#pragma unroll
        for (int tile = t / 32; tile < S::kRows / 16; tile += 4)
#pragma unroll
          for (int half = 0; half < Unit::kCodeBytes; half += 512)
            cuda::async_copy_16(w_at(slot) + tile * Unit::kBytes + t % 32 * 16 + half,
                                w + min(tile, last / 16) * tile_bytes + t % 32 * 16 + half);
        if constexpr (kOfScales > 0)
          if (t < S::kRows / 16 * kOfScales) {
            const int tile = t / kOfScales, at = Unit::kCodeBytes + t % kOfScales * 16;
            cuda::async_copy_16(w_at(slot) + tile * Unit::kBytes + at,
                                w + min(tile, last / 16) * tile_bytes + at);
          }
        w += Unit::kBytes;
      } else {
#pragma unroll
        for (int i = 0; i < S::kRows / 16; ++i)
          cuda::async_copy_16(w_at(slot) + place + i * 2048,
                              w + int64_t{min(t / 8 + 16 * i, last)} * g.cols * 2);
        w += 128;
      }
#pragma unroll
      for (int i = 0; i < S::kMaxN / 16; ++i)
        if (16 * i < it.n) cuda::async_copy_16(x_at(slot) + place + i * 2048, x + rows[i]);
      cuda::barrier_arrive_after_copies(full(slot));
    }
  }

  // Of a half of a stage, 32 k, the A registers of a warp's two tiles for two steps of 16 k.
  template <int kHalf>
  __device__ __forceinline__ void take_rows(uint32_t (&a)[2][2][4], int tile0) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const uint32_t tile = tile0 + 2 * m;
      if constexpr (S::kHasTiles) {
        const uint32_t at = w_at(slot) + tile * Unit::kBytes, mine = at + lane * 16;
        const auto scales = load_scales<Unit>(at);
        if constexpr (Unit::kHasNibbles) {
          const uint2 q = cuda::load_shared_8(mine + kHalf * 8);
          Unit::template decode<kHalf>(q.x, q.y, scales, a[m][0], a[m][1]);
        } else {
          const uint4 q = cuda::load_shared_16(mine + kHalf * 512);
          Unit::template decode<kHalf>(q, scales, a[m][0], a[m][1]);
        }
      } else {
        const uint32_t row = w_at(slot) + (tile * 16 + lane % 16) * 128;
#pragma unroll
        for (int k = 0; k < 2; ++k)
          cuda::load_matrices(a[m][k], row + (((4 * kHalf + 2 * k + lane / 16) ^ (lane % 8)) << 4));
      }
    }
  }
  template <int kHalf, int kGroups>
  __device__ __forceinline__ void multiply_half(float (&d)[2][kGroups][4], int tile0,
                                                uint32_t x_row) const {
    const int lane = threadIdx.x % 32;
    uint32_t a[2][2][4];
    take_rows<kHalf>(a, tile0);
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      uint32_t b[4];
      cuda::load_matrices(
          b, x_at(slot) + x_row + n * 1024 + (((4 * kHalf + lane / 8) ^ (lane % 8)) << 4));
#pragma unroll
      for (int k = 0; k < 2; ++k)
#pragma unroll
        for (int m = 0; m < 2; ++m)
          cuda::mma_bf16(d[m][n], a[m][k][0], a[m][k][1], a[m][k][2], a[m][k][3], b[2 * k],
                         b[2 * k + 1]);
    }
  }

  // A warp's sums: two tiles of 16 rows, 32 apart, by kGroups groups of 8 slots.
  template <int kGroups>
  __device__ __forceinline__ void multiply(const GemmItem& it) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - S::kFillThreads / 32;
    const int tile0 = warp / 4 * 4 + warp / 2 % 2, column0 = warp % 2 * kGroups * 8;
    const uint32_t x_row = (column0 + lane % 8) * 128;
    float d[2][kGroups][4] = {};
#pragma unroll 1
    for (int u = g.cols / 64; u > 0; --u, next()) {
      cuda::barrier_wait_together(full(slot), phase);
      multiply_half<0>(d, tile0, x_row);
      multiply_half<1>(d, tile0, x_row);
      cuda::barrier_arrive(empty(slot));
    }
    finish<kGroups>(it, it.row0 + 16 * tile0, column0, d);
  }

  // Rows from row0 and from row0 + 32 on, slots from column0 on. A lane has rows g and g + 8 of
  // each tile, columns 2 p and + 1: even rows keep the first, odd ones the second, each with its
  // neighbour's row.
  template <int kGroups>
  __device__ __forceinline__ void finish(const GemmItem& it, int row0, int column0,
                                         const float (&d)[2][kGroups][4]) {
    constexpr float kBack = S::kHasTiles ? kSumFactor : 1;
    const int lane = threadIdx.x % 32, g8 = lane / 4, odd = g8 & 1;
    float2 bias[2] = {}, back[2] = {{kBack, kBack}, {kBack, kBack}};
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      if (row0 + 32 * m >= g.rows) continue;
      const int64_t at = static_cast<int64_t>(it.expert) * g.rows + row0 + 32 * m + g8;
      if (g.bias != nullptr)
        bias[m] = {cuda::bf16_value(g.bias[at]), cuda::bf16_value(g.bias[at + 8])};
      if constexpr (S::kHasRowScales)
        back[m] = {kBack * g.row_scales[at], kBack * g.row_scales[at + 8]};
    }
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      float2 low[2], high[2];  // rows g8 & ~1 and + 1 of each tile, and the same + 8
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const float v0 = fmaf(d[m][n][0], back[m].x, bias[m].x);
        const float v1 = fmaf(d[m][n][1], back[m].x, bias[m].x);
        const float v2 = fmaf(d[m][n][2], back[m].y, bias[m].y);
        const float v3 = fmaf(d[m][n][3], back[m].y, bias[m].y);
        const float r0 = __shfl_xor_sync(~0u, odd ? v0 : v1, 4);
        const float r1 = __shfl_xor_sync(~0u, odd ? v2 : v3, 4);
        low[m] = odd ? float2{r0, v1} : float2{v0, r0};
        high[m] = odd ? float2{r1, v3} : float2{v2, r1};
      }
      const int column = column0 + 8 * n + lane % 4 * 2 + odd;
      if (column < it.valid) store(it.slot0 + column, row0 + (g8 & ~1), low, high);
    }
  }

  // Of slot s: rows `row` and + 1 of two tiles 32 apart, and the same + 8.
  __device__ __forceinline__ void store(int s, int row, const float2 (&low)[2],
                                        const float2 (&high)[2]) {
    if constexpr (S::kOut == GemmOut::kQkv) {
      if (row >= g.rows) return;
      const int head = row / 64, i = row % 64;
      const int64_t place = head < g.qkv.q_heads ? 0 : kv_row(g.qkv, s);
      store_pairs(g.qkv, place, s, head, i, low[0], low[1], turn_of_pairs(g.qkv, s, head, i));
      store_pairs(g.qkv, place, s, head, i + 8, high[0], high[1],
                  turn_of_pairs(g.qkv, s, head, i + 8));
    } else {
#pragma unroll
      for (int m = 0; m < 2; ++m)
        if (row + 32 * m < g.rows) store_tile(s, row + 32 * m, low[m], high[m]);
    }
  }
  __device__ __forceinline__ void store_tile(int s, int row, float2 low, float2 high) {
    if constexpr (S::kOut == GemmOut::kSwiglu) {
      auto* u = static_cast<uint16_t*>(g.y) + (int64_t{s} * g.rows + row) / 2;
      u[0] = cuda::bf16_bits(swiglu(low.x, low.y, g.act));
      u[4] = cuda::bf16_bits(swiglu(high.x, high.y, g.act));
    } else if constexpr (S::kOut == GemmOut::kRelu2) {
      auto* u = static_cast<uint16_t*>(g.y) + int64_t{s} * g.rows + row;
      *reinterpret_cast<uint32_t*>(u) = cuda::pack_bf16(relu2(low.x), relu2(low.y));
      *reinterpret_cast<uint32_t*>(u + 8) = cuda::pack_bf16(relu2(high.x), relu2(high.y));
    } else if constexpr (S::kOut == GemmOut::kBF16) {
      auto* y = static_cast<uint16_t*>(g.y) + int64_t{s} * g.rows + row;
      *reinterpret_cast<uint32_t*>(y) = cuda::pack_bf16(low.x, low.y);
      *reinterpret_cast<uint32_t*>(y + 8) = cuda::pack_bf16(high.x, high.y);
    } else {
      auto* y = static_cast<float*>(g.y) + int64_t{s} * g.rows + row;
      *reinterpret_cast<float2*>(y) = low;
      *reinterpret_cast<float2*>(y + 8) = high;
    }
  }

  __device__ __forceinline__ void work() {
    auto* lists = reinterpret_cast<int32_t*>(base + S::kLists);
    GemmSchedule schedule{.offsets = g.offsets,
                          .experts = g.experts,
                          .row_tiles = (g.rows + S::kRows - 1) / S::kRows,
                          .rows_of_tile = S::kRows,
                          .num_slots = g.num_slots,
                          .max_n = g.max_n,
                          .width = lists,
                          .order = lists + S::kExperts,
                          .prefix = lists + 2 * S::kExperts};
    if (threadIdx.x == 0) {
      for (int s = 0; s < S::kStages; ++s) {
        cuda::barrier_init(full(s), S::kFillThreads);
        cuda::barrier_init(empty(s), S::kMultiplyThreads);
      }
    }
    cuda::griddep_wait();
    cuda::griddep_launch_dependents();
    schedule.make();
    GemmItem it;
    for (int item = blockIdx.x; schedule.find(item, it); item += gridDim.x) {
      if (threadIdx.x < S::kFillThreads)
        fill(it, threadIdx.x % S::kFillThreads);  // ptxas spills without the mask
      else if (it.n <= 16)
        multiply<1>(it);
      else if (it.n <= 32)
        multiply<2>(it);
      else if (it.n <= 64)
        multiply<4>(it);
      else if (!S::kIsInt4 && it.n <= 96)  // INT4 with one width more: it spills on Hopper
        multiply<6>(it);
      else
        multiply<8>(it);
    }
  }
};

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    mma_gemm_kernel(const __grid_constant__ MmaParams g) {
  extern __shared__ __align__(128) char memory[];
  MmaBlock<S>{g, memory}.work();
}

template <typename S>
void launch(Ctx& cx, const Weight& w, const GemmArgs& args) {
  MmaParams params{args_of(w, args), w.codes};
  const int blocks = cx.kernels.gpu.num_sms;
  params.max_n = slots_of_mma_item(params, S::kRows, S::kMaxN, blocks);
  cuda::launch(cx.stream, mma_gemm_kernel<S>,
               {.grid = dim3(static_cast<unsigned>(blocks)),
                .block = dim3(S::kThreads),
                .smem_bytes = S::kBytes,
                .release = cuda::Release::kAfterWait},
               params);
}

}  // namespace nibble::ops::gpu::mma
