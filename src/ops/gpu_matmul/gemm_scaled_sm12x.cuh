// Grouped GEMM by SM12x's block-scaled mma: activations in E4M3, of weights in MXFP4, NVFP4, MXFP8
// or FP8 by row, or in E2M1, of weights in MXFP4 or NVFP4:
// y[slot] = scale[row of slot] * (x[row of slot] W_e^T) + b_e, e the slot's expert.
//
//   weights  in   [E][N / 16][K / 64] units, see formats/layout.h; any block scales; of NVFP4 and
//                 FP8 [E][N] f32 besides
//   x        in   [*, K] E4M3, or rows of E2M1 (e2m1_rows.h), in lane order (below); x_scale [*]
//                 f32, or one constant
//   token, offsets, bias, y: as in gemm_sm90.cuh; with SwiGLU y is bf16, of MXFP4 by E4M3 E4M3 in
//            lane order; of kQkv q, k and v are turned and stored
//
// Lane order: lane_order.h. A unit is operand A nearly as it lies: operands_sm12x.cuh.
//
// A work item is 256 rows of one expert and up to 128 slots, so an expert's weights leave DRAM once
// a step: further slots find them in L2. A block takes every gridDim-th item; four warps fill a
// ring of stages of 64 k, eight multiply, each 64 rows by an eighth to a half of the slots. Sums
// are one chain over K: the same whatever else is in the step.
//
// Bytes: the weights' + slots (K + 2 N), of E2M1 (9 K / 16 + 2 N); floor on a GB10 the larger of
// these at 233 GB/s and 2 slots N K at 2,048 FLOP a clock and SM (projected: 236 TFLOP/s at 2.4
// GHz), twice that by E2M1. A stage of 128 slots takes 2,048 clocks of the tensor pipe, or
// 1,024; what else it takes is in tools/loop_bounds.json, which
// `make check-cubins` holds it to. Not run on a GB10 yet; on an H200 by emulation, in tests alone.
//
// Lost: copies in bulk, one warp that fills: docs/lab/spark.md.
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/bf16.cuh"
#include "cuda/launch.cuh"
#include "cuda/mbarrier.cuh"
#include "ops/gpu_matmul/e2m1_rows.h"
#include "ops/gpu_matmul/e4m3_rows.h"
#include "ops/gpu_matmul/gemm_items.h"
#include "ops/gpu_matmul/gemm_schedule.cuh"
#include "ops/gpu_matmul/gemm_sm90.h"
#include "ops/gpu_matmul/operands_sm12x.cuh"
#include "ops/moe_up/swiglu.cuh"
#include "ops/norm_qkv/store_qkv.cuh"

namespace nibble::ops::gpu::sm12x {

using sm90::GemmItem, sm90::GemmSchedule;

// Bytes of a row of activations.
template <Values kInputs>
__device__ __forceinline__ int pitch_of_inputs(int cols) {
  return kInputs == Values::kE2m1 ? static_cast<int>(e2m1_pitch(cols)) : cols;
}

// What all of them share.
struct ScaledSizes {
  static constexpr int kRows = 256, kMaxN = 128;
  static constexpr int kFillThreads = 128, kMultiplyThreads = 256;
  static constexpr int kThreads = kFillThreads + kMultiplyThreads;
  static constexpr int kFillRegisters = 72, kMultiplyRegisters = 216;  // of 168 at the start
};

template <Format kFormat_, GemmOut kOut_, Values kInputs_ = Values::kE4m3,
          Body kBody_ = Body::kFast>
struct ScaledShape : ScaledSizes {
  static constexpr Values kInputs = kInputs_;
  using Inputs = sm12x::Inputs<kInputs>;
  using Operands = sm12x::Operands<kFormat_, kInputs>;
  static constexpr Format kFormat = kFormat_;
  static constexpr GemmOut kOut = kOut_;
  static constexpr Body kBody = kBody_;
  static constexpr int kUnitBytes = tile_bytes(kFormat), kCodeBytes = tile_code_bytes(kFormat);
  static constexpr int kStages = kInputs == Values::kE2m1 ? 6 : kCodeBytes == 512 ? 4 : 3;
  static constexpr int kTiles = kRows / 16;
  static constexpr int kWBytes = kTiles * kUnitBytes, kXBytes = kMaxN * Inputs::kBytes;
  static constexpr int kX = kStages * kWBytes;
  static constexpr bool kLeavesE4m3 =
      kOut == GemmOut::kSwiglu && kFormat == Format::kMxfp4 && kInputs == Values::kE4m3;
  static constexpr int kXScales = kX + kStages * kXBytes,
                       kXScaleBytes = kMaxN * Inputs::kScaleBytes;
  static constexpr int kOutput = kXScales + kStages * kXScaleBytes;  // then [slot][128 features]
  static constexpr int kOutputPitch = kRows / 2 + 16;  // so that slots start at other banks
  static constexpr int kTable = kOutput + (kLeavesE4m3 ? kMaxN * kOutputPitch : 0);
  static constexpr int kBarriers = kTable + Operands::kTableBytes;
  static constexpr int kLists = kBarriers + 2 * kStages * 8;
  static constexpr int kBytes = kLists + (3 * kMaxExperts + 1) * 4;
  static_assert(kBytes <= 99 * 1024);
};

struct ScaledParams : GemmArgs {
  const uint8_t* units;
};

template <typename S>
struct ScaledBlock {
  static constexpr GemmOut kOut = S::kOut;
  static constexpr bool kHasRowScales = format_row(S::kFormat).row_scales;
  const ScaledParams& g;
  char* base;  // of shared memory
  uint32_t smem = cuda::shared_address(base);
  int slot = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ uint32_t w_at(int s) const { return smem + s * S::kWBytes; }
  __device__ __forceinline__ uint32_t x_at(int s) const { return smem + S::kX + s * S::kXBytes; }
  __device__ __forceinline__ uint32_t x_scales_at(int s) const {
    return smem + S::kXScales + s * S::kXScaleBytes;
  }
  __device__ __forceinline__ uint32_t full(int s) const { return smem + S::kBarriers + s * 8; }
  __device__ __forceinline__ uint32_t empty(int s) const { return full(s) + S::kStages * 8; }
  __device__ __forceinline__ void next() {
    if (++slot == S::kStages) slot = 0, phase ^= 1;
  }

  __device__ __forceinline__ int row_of(const GemmItem& it, int column) const {
    const int s = it.slot0 + min(column, it.valid - 1);
    return g.token != nullptr ? g.token[s] : s;
  }

  // One item by the filling warps. Of a tile of rows a warp moves the codes, some threads the
  // scales; four threads move a slot's 64 k, or two, and one its scales.
  __device__ __forceinline__ void fill(const GemmItem& it, int t) {
    const int units = g.cols / 64, last = (g.rows - it.row0) / 16 - 1;
    const int64_t tile0 = static_cast<int64_t>(it.expert) * (g.rows / 16) + it.row0 / 16;
    const uint8_t* w = g.units + tile0 * units * S::kUnitBytes;
    uint32_t tiles[S::kTiles / 4];
#pragma unroll
    for (int i = 0; i < S::kTiles / 4; ++i)
      tiles[i] = min(t / 32 + 4 * i, last) * units * S::kUnitBytes + t % 32 * 16;
    constexpr int kOfScales = (S::kUnitBytes - S::kCodeBytes) / 16,
                  kEach = kOfScales > 0 ? kOfScales : 1;
    [[maybe_unused]] const uint32_t scales =
        min(t / kEach, last) * units * S::kUnitBytes + S::kCodeBytes + t % kEach * 16;
    constexpr int kParts = S::Inputs::kBytes / 16, kSlots = S::kFillThreads / kParts;
    const int pitch = pitch_of_inputs<S::kInputs>(g.cols);
    uint32_t rows[S::kMaxN / kSlots];  // where rows of x begin, in 16 bytes
#pragma unroll
    for (int i = 0; i < S::kMaxN / kSlots; ++i)
      rows[i] =
          static_cast<uint32_t>(row_of(it, t / kParts + kSlots * i)) * (pitch / 16) + t % kParts;
    const auto* x = static_cast<const uint4*>(g.x);
    [[maybe_unused]] const float* x_scales = nullptr;  // four codes in each
    if constexpr (S::kXScaleBytes > 0)
      x_scales = static_cast<const float*>(g.x) + (int64_t{row_of(it, t)} * pitch + g.cols / 2) / 4;
    for (int u = 0; u < units; ++u, w += S::kUnitBytes, x += kParts, next()) {
      cuda::barrier_wait(empty(slot), phase ^ 1);
      asm volatile("" : "+l"(w));  // or the address of each tile would be kept, and stepped
      const uint32_t to_w = w_at(slot), to_x = x_at(slot) + t * 16;
#pragma unroll
      for (int i = 0; i < S::kTiles / 4; ++i)
#pragma unroll
        for (int half = 0; half < S::kCodeBytes; half += 512)
          cuda::async_copy_16(to_w + (t / 32 + 4 * i) * S::kUnitBytes + t % 32 * 16 + half,
                              w + tiles[i] + half);
      if constexpr (kOfScales > 0)
        if (t < kOfScales * S::kTiles)
          cuda::async_copy_16(
              to_w + t / kOfScales * S::kUnitBytes + S::kCodeBytes + t % kOfScales * 16,
              w + scales);
#pragma unroll
      for (int i = 0; i < S::kMaxN / kSlots; ++i)
        if (t / kParts + kSlots * i < it.n)
          cuda::async_copy_16(to_x + i * S::kFillThreads * 16, x + rows[i]);
      if constexpr (S::kXScaleBytes > 0)
        if (t < it.n)
          cuda::async_copy_4(
              reinterpret_cast<float*>(base + S::kXScales + slot * S::kXScaleBytes) + t,
              x_scales + u);
      cuda::barrier_arrive_after_copies(full(slot));
    }
  }

  // x: of the lane's first codes, x_scales: of the warp's first slot.
  template <int kGroups>
  __device__ __forceinline__ void multiply_unit(float (&d)[4][kGroups][4], uint32_t w_warp,
                                                uint32_t x, uint32_t x_scales) const {
    typename S::Operands a[4];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const uint32_t unit = w_warp + m * S::kUnitBytes;
      a[m].take(unit + threadIdx.x % 32 * 16, unit + S::kCodeBytes, smem + S::kTable);
    }
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      const typename S::Inputs b(x + n * 8 * S::Inputs::kBytes, x_scales + n * 32);
#pragma unroll
      for (int m = 0; m < 4; ++m) a[m].template add<S::kBody, 0>(d[m][n], b);
      if constexpr (S::Inputs::kSteps > 1) {
#pragma unroll
        for (int m = 0; m < 4; ++m) a[m].template add<S::kBody, 1>(d[m][n], b);
      }
    }
  }
  template <int kHalf, int kGroups>
  __device__ __forceinline__ void multiply_half(float (&d)[4][kGroups][4], uint32_t w_warp,
                                                uint32_t x_lane) const {
    typename S::Operands a[4];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const uint32_t unit = w_warp + m * S::kUnitBytes;
      a[m].template take<kHalf>(unit + threadIdx.x % 32 * 16, unit + S::kCodeBytes,
                                smem + S::kTable);
    }
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      const uint2 x = cuda::load_shared_8(x_lane + n * 512 + 8 * kHalf);
#pragma unroll
      for (int m = 0; m < 4; ++m) a[m].template add<S::kBody>(d[m][n], x);
    }
  }

  // A warp's sums: 4 tiles of 16 rows by kGroups groups of 8 slots.
  template <int kGroups>
  __device__ __forceinline__ void multiply(const GemmItem& it) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - S::kFillThreads / 32;
    const int row_warp = warp / 2, column_warp = warp % 2;
    const uint32_t w_warp = row_warp * 4 * S::kUnitBytes;
    constexpr int kXBytes = 8 * S::Inputs::kBytes;  // of 8 slots
    const uint32_t x_lane = column_warp * kGroups * kXBytes + lane * (kXBytes / 32);
    float d[4][kGroups][4] = {};
#pragma unroll 1
    for (int u = g.cols / 64; u > 0; --u, next()) {
      cuda::barrier_wait_together(full(slot), phase);
      if constexpr (S::Operands::kIsHalf) {
        multiply_half<0>(d, w_at(slot) + w_warp, x_at(slot) + x_lane);
        multiply_half<1>(d, w_at(slot) + w_warp, x_at(slot) + x_lane);
      } else {
        multiply_unit(d, w_at(slot) + w_warp, x_at(slot) + x_lane,
                      x_scales_at(slot) + column_warp * kGroups * 32);
      }
      cuda::barrier_arrive(empty(slot));
    }
    finish<kGroups>(it, row_warp, column_warp * kGroups * 8, d);
  }

  __device__ __forceinline__ float scale_of(int s) const {
    if (g.x_scale == nullptr) return g.x_scale_all;
    return g.x_scale[g.token != nullptr ? g.token[s] : s];
  }

  // Rows 64 row_warp on of the item, slots from column0 on. A lane has rows g and g + 8 of each
  // tile, columns 2 p and + 1: even rows keep the first, odd ones the second, each with its
  // neighbour's row.
  template <int kGroups>
  __device__ __forceinline__ void finish(const GemmItem& it, int row_warp, int column0,
                                         const float (&d)[4][kGroups][4]) {
    const int lane = threadIdx.x % 32, g8 = lane / 4, odd = g8 & 1, pair = g8 & ~1;
    const int row0 = it.row0 + 64 * row_warp;
    if constexpr (S::kLeavesE4m3) wait_multiplying();  // nobody reads the item before
    float2 bias[4] = {}, back[4];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      back[m] = {1, 1};
      if (row0 + 16 * m >= g.rows) continue;
      const int64_t at = static_cast<int64_t>(it.expert) * g.rows + row0 + 16 * m + g8;
      if (g.bias != nullptr)
        bias[m] = {cuda::bf16_value(g.bias[at]), cuda::bf16_value(g.bias[at + 8])};
      if constexpr (kHasRowScales) {
        constexpr float kFactor = S::Operands::kSumFactor;
        back[m] = {kFactor * g.row_scales[at], kFactor * g.row_scales[at + 8]};
      }
    }
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      const int first = column0 + 8 * n + lane % 4 * 2, column = first + odd;
      const float s0 = scale_of(it.slot0 + min(first, it.valid - 1));
      const float s1 = scale_of(it.slot0 + min(first + 1, it.valid - 1));
      float2 low[4], high[4];  // rows pair and + 1 of each tile, and the same + 8
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const float2 f = back[m];
        const float v0 = fmaf(d[m][n][0] * f.x, s0, bias[m].x);
        const float v1 = fmaf(d[m][n][1] * f.x, s1, bias[m].x);
        const float v2 = fmaf(d[m][n][2] * f.y, s0, bias[m].y);
        const float v3 = fmaf(d[m][n][3] * f.y, s1, bias[m].y);
        const float r0 = __shfl_xor_sync(~0u, odd ? v0 : v1, 4);
        const float r1 = __shfl_xor_sync(~0u, odd ? v2 : v3, 4);
        low[m] = odd ? float2{r0, v1} : float2{v0, r0};
        high[m] = odd ? float2{r1, v3} : float2{v2, r1};
      }
      if (column < it.valid) store(it, row0, column, pair, low, high);
    }
    if constexpr (S::kLeavesE4m3) store_output(it);
  }

  __device__ __forceinline__ void store(const GemmItem& it, int row0, int column, int pair,
                                        const float2 (&low)[4], const float2 (&high)[4]) {
    const int s = it.slot0 + column;
    if constexpr (S::kLeavesE4m3) {
      // Features f and f + 4 of 8, of four eights, in lane order.
      uint32_t at = smem + S::kOutput + column * S::kOutputPitch + (row0 - it.row0) / 128 * 64 +
                    (row0 - it.row0) / 64 % 2 * 8;
      const int f = pair / 2;
      at += f / 2 * 16 + f % 2 * 2;
      leave(at, low[0], low[2]);
      leave(at + 4, low[1], low[3]);
      leave(at + 32, high[0], high[2]);
      leave(at + 36, high[1], high[3]);
    } else if constexpr (kOut == GemmOut::kQkv) {
      if (row0 >= g.rows) return;
      const int head = row0 / 64;
      const int64_t place = head < g.qkv.q_heads ? 0 : kv_row(g.qkv, s);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const int i = 16 * m + pair;
        store_pairs(g.qkv, place, s, head, i, low[m], low[m + 2], turn_of_pairs(g.qkv, s, head, i));
        store_pairs(g.qkv, place, s, head, i + 8, high[m], high[m + 2],
                    turn_of_pairs(g.qkv, s, head, i + 8));
      }
    } else {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        if (row0 + 16 * m >= g.rows) return;
        const int64_t at = int64_t{s} * g.rows + row0 + 16 * m + pair;
        if constexpr (kOut == GemmOut::kSwiglu) {
          auto* u = static_cast<uint16_t*>(g.y) + at / 2;
          u[0] = cuda::bf16_bits(swiglu(low[m].x, low[m].y, g.act));
          u[4] = cuda::bf16_bits(swiglu(high[m].x, high[m].y, g.act));
        } else if constexpr (kOut == GemmOut::kBF16 || kOut == GemmOut::kRelu2) {
          const auto value = [](float v) { return kOut == GemmOut::kRelu2 ? relu2(v) : v; };
          auto* y = static_cast<uint16_t*>(g.y) + at;
          *reinterpret_cast<uint32_t*>(y) = cuda::pack_bf16(value(low[m].x), value(low[m].y));
          *reinterpret_cast<uint32_t*>(y + 8) = cuda::pack_bf16(value(high[m].x), value(high[m].y));
        } else {
          auto* y = static_cast<float*>(g.y) + at;
          *reinterpret_cast<float2*>(y) = low[m];
          *reinterpret_cast<float2*>(y + 8) = high[m];
        }
      }
    }
  }

  // Two features, of their gates and ups.
  __device__ __forceinline__ void leave(uint32_t at, float2 a, float2 b) const {
    const uint32_t codes = cuda::e4m3_pair(swiglu(a.x, a.y, g.act) * (1 / kExpertScale),
                                           swiglu(b.x, b.y, g.act) * (1 / kExpertScale));
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"(static_cast<uint16_t>(codes)) : "memory");
  }
  __device__ __forceinline__ static void wait_multiplying() {
    asm volatile("bar.sync 1, %0;" ::"n"(S::kMultiplyThreads) : "memory");
  }
  // SwiGLU's features of the item, by the multiplying warps: whole 16 bytes.
  __device__ __forceinline__ void store_output(const GemmItem& it) const {
    wait_multiplying();
    const int width = g.rows / 2, chunk = threadIdx.x % 8;
    if (it.row0 / 2 + chunk * 16 >= width) return;
    auto* to = static_cast<uint8_t*>(g.y) + int64_t{it.slot0} * width + it.row0 / 2 + chunk * 16;
    for (int s = (threadIdx.x - S::kFillThreads) / 8; s < it.valid; s += S::kMultiplyThreads / 8)
      *reinterpret_cast<uint4*>(to + int64_t{s} * width) =
          cuda::load_shared_16(smem + S::kOutput + s * S::kOutputPitch + chunk * 16);
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
                          .order = lists + kMaxExperts,
                          .prefix = lists + 2 * kMaxExperts};
    if (threadIdx.x == 0) {
      for (int s = 0; s < S::kStages; ++s) {
        cuda::barrier_init(full(s), S::kFillThreads);
        cuda::barrier_init(empty(s), S::kMultiplyThreads);
      }
    }
    make_table<S::kFormat, S::kInputs>(base + S::kTable);
    cuda::griddep_wait();
    cuda::griddep_launch_dependents();
    schedule.make();
    GemmItem it;
    if (threadIdx.x < S::kFillThreads) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::kFillRegisters));
      for (int item = blockIdx.x; schedule.find(item, it); item += gridDim.x) fill(it, threadIdx.x);
      return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::kMultiplyRegisters));
    for (int item = blockIdx.x; schedule.find(item, it); item += gridDim.x) {
      if (it.n <= 16)
        multiply<1>(it);
      else if (it.n <= 32)
        multiply<2>(it);
      else if (it.n <= 64)
        multiply<4>(it);
      else if (it.n <= 96)
        multiply<6>(it);
      else
        multiply<8>(it);
    }
  }
};

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    scaled_gemm_kernel(const __grid_constant__ ScaledParams g) {
  extern __shared__ __align__(128) char memory[];
  ScaledBlock<S>{g, memory}.work();
}

template <typename S>
void launch_scaled(Ctx& cx, const Weight& w, const GemmArgs& args) {
  if (args.num_slots == 0) return;
  CHECK(w.format == S::kFormat && w.layout == Layout::kTiles16x64);
  ScaledParams params{args_of(w, args), w.codes};
  const int blocks = cx.kernels.gpu.num_sms;
  params.max_n = slots_of_mma_item(params, S::kRows, S::kMaxN, blocks);
  cuda::launch(cx.stream, scaled_gemm_kernel<S>,
               {.grid = dim3(static_cast<unsigned>(blocks)),
                .block = dim3(S::kThreads),
                .smem_bytes = S::kBytes,
                .release = cuda::Release::kAfterWait},
               params);
}

}  // namespace nibble::ops::gpu::sm12x
