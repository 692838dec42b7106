// What the wgmma GEMMs share (gemm_sm90.cuh, gemm_fp8_sm90.cuh): a block's ring of stages and its
// walk over the work items, and SwiGLU.
#pragma once

#include "cuda/launch.cuh"
#include "cuda/mma_sm90.cuh"
#include "ops/gpu_matmul/gemm_schedule.cuh"
#include "ops/gpu_matmul/gemm_sm90.h"
#include "ops/moe_up/swiglu.cuh"

namespace nibble::ops::gpu::sm90 {

using namespace nibble::cuda::sm90;

__device__ __forceinline__ float min_nan(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
__device__ __forceinline__ float max_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
__device__ __forceinline__ float swiglu(float gate, float up, const Swiglu& act) {
  const float g = min_nan(gate, act.limit);
  const float v = min_nan(max_nan(up, -act.limit), act.limit);
  // Flushing to zero: where the power or its inverse does, the product is below 2^-119.
  float power, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(g * (-act.alpha * 1.44269504f)));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(power + 1.f));
  return g * inverse * (v + act.shift);
}

__device__ __forceinline__ uint32_t pack(float lo, float hi) {
  uint32_t y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
  return y;
}

// The ring of stages and the walk over the items. `Block` has fill(item, thread) or, where the
// shape says so, fill<kN>(item, thread); multiply<kN>(item, warpgroup) and stages(item).
template <typename Block, typename S>
struct GemmRing {
  const GemmArgs& args;
  char* base;  // of shared memory, 1024-byte aligned
  uint32_t smem = shared_address(base);
  int slot = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ uint32_t x_at(int s) const { return smem + s * S::kXBytes; }
  __device__ __forceinline__ uint32_t w_at(int s) const { return smem + S::kW + s * S::kWBytes; }
  __device__ __forceinline__ uint32_t full(int s) const { return smem + S::kBarriers + s * 8; }
  __device__ __forceinline__ uint32_t empty(int s) const {
    return smem + S::kBarriers + (S::kStages + s) * 8;
  }
  __device__ __forceinline__ void next() {
    if (++slot == S::kStages) slot = 0, phase ^= 1;
  }
  // By a multiplying warp, together: the stage is there.
  __device__ __forceinline__ void wait_filled() {
    barrier_wait_together(full(slot), phase);
    fence_async_proxy();
  }
  // Stage s may be filled anew: every lane says so, which costs no more than one.
  __device__ __forceinline__ void release(int s) { barrier_arrive(empty(s)); }

  // The item of a schedule, whose row tiles are taken slice by slice.
  __device__ __forceinline__ bool find(GemmSchedule& schedule, int item, GemmItem& it) const {
    schedule.advance(item);
    if (!schedule.find(item, it)) return false;
    if constexpr (S::kIsSliced) {
      const int tile = it.row0 / S::kRows;
      it.slice = tile % args.slices;
      it.row0 = tile / args.slices * S::kRows;
    }
    return true;
  }

  // This warpgroup has no rows of the item.
  __device__ void skip(const GemmItem& it) {
    for (int n = static_cast<Block*>(this)->stages(it); n > 0; --n) {
      barrier_wait(full(slot), phase);
      release(slot);
      next();
    }
  }

  // The run of items whose token tiles are kN wide, then the narrower ones. A loop of its own for
  // each width: in one loop with a switch the compiler serializes all wgmma.
  template <bool kFill, int kN = S::kMaxN>
  __device__ __forceinline__ void run(GemmSchedule& schedule, GemmItem& it, int& item, int wg) {
    Block& block = *static_cast<Block*>(this);
    while (it.n == kN * S::kSlotTiles) {
      if constexpr (kFill)
        block.template fill<kN>(it, threadIdx.x);
      else if (it.row0 + wg * 64 * S::kRowTiles >= args.rows)
        skip(it);
      else
        block.template multiply<kN>(it, wg);
      item += gridDim.x;
      if (!find(schedule, item, it)) it.n = 0;
    }
    if constexpr (kN > 16) run<kFill, kN - 16>(schedule, it, item, wg);
  }

  // The kernel behind what it does before; `filled`: arrivals that fill a stage.
  __device__ __forceinline__ void work(int filled) {
    int32_t* lists = reinterpret_cast<int32_t*>(base + S::kLists);
    GemmSchedule schedule{
        .offsets = args.offsets,
        .experts = args.experts,
        .row_tiles = (args.rows + S::kRows - 1) / S::kRows * (S::kIsSliced ? args.slices : 1),
        .rows_of_tile = S::kRows,
        .num_slots = args.num_slots,
        .max_n = args.max_n,
        .width = lists,
        .order = lists + kMaxExperts,
        .prefix = lists + 2 * kMaxExperts,
        .step = S::kStep};
    if (threadIdx.x == 0) {
      for (int s = 0; s < S::kStages; ++s) {
        barrier_init(full(s), filled);
        barrier_init(empty(s), 128 * S::kGroups);
      }
      barrier_init_fence();
    }
    cuda::griddep_wait();
    cuda::griddep_launch_dependents();
    schedule.make();
    GemmItem it;
    int item = blockIdx.x;
    // A block has what it was started with, so many registers a thread: more would never come.
    constexpr int kStart = (1 << 16) / S::kThreads / 8 * 8;
    static_assert(S::kFillRegisters + S::kGroups * S::kMultiplyRegisters <=
                  (1 + S::kGroups) * kStart);
    if (threadIdx.x < 128) {
      fewer_registers<S::kFillRegisters>();
      if constexpr (S::kFillsByWidth) {
        if (!find(schedule, item, it)) it.n = 0;
        run<true>(schedule, it, item, -1);
      } else {
        for (; schedule.find(item, it); item += gridDim.x)
          static_cast<Block*>(this)->fill(it, threadIdx.x);
      }
    } else {
      more_registers<S::kMultiplyRegisters>();
      if (!find(schedule, item, it)) it.n = 0;
      run<false>(schedule, it, item, threadIdx.x / 128 - 1);
    }
  }
};

__device__ __forceinline__ char* aligned_1024(char* raw) {
  return raw + (1024 - shared_address(raw) % 1024) % 1024;
}

}  // namespace nibble::ops::gpu::sm90
