// The choice of K experts from one token's logits by all threads of a block.
#pragma once

#include "ops/norm_route/route.cuh"

namespace nibble::ops::gpu {

// choose_many() by a block, whose threads have a value or two each. Its code is short, as all of it
// is read once, from L2: one warp with 16 values a lane took 4 to 8 us (an H200, 2026-11-23).
template <int kThreads>
struct BlockChoice {
  static constexpr int kEach = kMaxRouted / kThreads;
  uint32_t best[32], count;
  uint2 found[32];  // value, and expert | slot << 16

  // Behind it a barrier of the block, then run().
  __device__ __forceinline__ void clear() {
    if (threadIdx.x < 32) best[threadIdx.x] = 0;
    if (threadIdx.x == 0) count = 0;
  }
  // The last warp gets the choices.
  __device__ __forceinline__ OneChoice run(const float* logits, int experts, int top_k,
                                           const Scoring& scoring) {
    const int lane = threadIdx.x % 32;
    uint32_t value[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int e = i * kThreads + static_cast<int>(threadIdx.x);
      value[i] = e < experts ? ordered(scoring(__ldcg(logits + e), e)) : 0;
      if (value[i] > 0) atomicMax(&best[lane], value[i]);
    }
    __syncthreads();
    const uint32_t mine = best[lane];
    int rank = 0;
#pragma unroll 4
    for (int other = 0; other < 32; ++other) {
      const uint32_t theirs = __shfl_sync(~0u, mine, other);
      rank += theirs > mine || (theirs == mine && other < lane);
    }
    const uint32_t least = __reduce_min_sync(~0u, rank < top_k ? mine : ~0u);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (value[i] < least) continue;
      const uint32_t at = atomicAdd(&count, 1);
      if (at < 32) found[at] = {value[i], i * kThreads + threadIdx.x};
    }
    __syncthreads();
    if (threadIdx.x / 32 + 1 != kThreads / 32) return {};
    if (count > 32)  // many that are equal
      return place_one(choose_by_passes(logits, experts, top_k, scoring), top_k);
    return rank_found(top_k);
  }

 private:
  __device__ __forceinline__ OneChoice rank_found(int top_k) {
    const uint32_t lane = threadIdx.x % 32;
    const uint2 own = lane < count ? found[lane] : uint2{};
    int rank = 0, slot = 0;
#pragma unroll 2
    for (uint32_t other = 0; other < count; ++other) {
      const uint2 theirs = found[other];
      rank += theirs.x > own.x || (theirs.x == own.x && theirs.y < own.y);
    }
    const bool is_chosen = lane < count && rank < top_k;
#pragma unroll 1
    for (unsigned chosen = __ballot_sync(~0u, is_chosen); chosen != 0; chosen &= chosen - 1)
      slot += __shfl_sync(~0u, own.y, __ffs(chosen) - 1) < own.y;
    if (is_chosen) found[rank] = {own.x, own.y | static_cast<uint32_t>(slot) << 16};
    __syncwarp();
    if (lane >= top_k) return {};
    const uint2 at = found[lane];
    return {{static_cast<int32_t>(at.y & 0xffff), of_ordered(at.x)},
            static_cast<int32_t>(at.y >> 16)};
  }
};

// choose_left() by a block, for its last warp.
template <int kThreads>
__device__ __forceinline__ OneChoice choose_left(BlockChoice<kThreads>& by, const Routing& all) {
  const Routing r = routed_of(all);
  return add_shared_left(by.run(all.logits, r.num_experts, r.top_k, Scoring{r.bias}), all);
}

}  // namespace nibble::ops::gpu
