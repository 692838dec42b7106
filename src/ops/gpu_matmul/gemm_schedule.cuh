// Work items of a grouped GEMM, made on the device: the host knows no routing.
#pragma once

#include <cstdint>

#include "ops/gpu_matmul/gemm_items.h"

namespace nibble::ops::gpu::sm90 {

// Rows [row0, row0 + the kernel's tile) of one expert and `valid` slots from slot0 on, multiplied
// as if they were n, a multiple of the schedule's step.
struct GemmItem {
  int expert, row0, slot0, valid, n;
  int slice = 0;  // of K
};

// Work items: experts by falling width of their token tiles, so that each width is one run; within
// an expert token tiles vary fastest. Lists lie in shared memory.
struct GemmSchedule {
  const int32_t* offsets;
  int experts, row_tiles, rows_of_tile, num_slots, max_n;
  int32_t* width;   // [E] token tile of each expert, in 16s; 0 without slots
  int32_t* order;   // [E] experts in order of their items
  int32_t* prefix;  // [kMaxExperts + 1] items before each of them; at E and at the end: all
  int step = 16;    // widths are multiples of it
  int cursor = 0;

  __device__ __forceinline__ int slots_before(int e) const {
    return offsets != nullptr ? offsets[e] : (e == 0 ? 0 : num_slots);
  }
  __device__ __forceinline__ int token_tiles(int count) const {
    return (count + max_n - 1) / max_n;
  }

  // By all threads of the block, in whole warps. Experts take their places by counting: `prefix`
  // first holds how many of each width there are in each 32, the widest first.
  __device__ void make() {
    const int groups = (experts + 31) / 32, counts = (max_n / 16 + 1) * groups;
    for (int i = threadIdx.x; i < counts; i += blockDim.x) prefix[i] = 0;
    __syncthreads();
    for (int e = threadIdx.x; e < groups * 32; e += blockDim.x) {
      if (e < experts) {
        const int count = slots_before(e + 1) - slots_before(e);
        const int tiles = max(1, token_tiles(count));
        width[e] = ((count + tiles - 1) / tiles + step - 1) / step * (step / 16);
      }
      const uint32_t alike = alike_of(e);
      if (e < experts && before(alike) == 0) prefix[place_of(e, groups)] = __popc(alike);
    }
    __syncthreads();
    if (threadIdx.x < 32) sum_up(counts);
    __syncthreads();
    for (int e = threadIdx.x; e < groups * 32; e += blockDim.x) {
      const uint32_t alike = alike_of(e);
      if (e < experts) order[prefix[place_of(e, groups)] + before(alike)] = e;
    }
    __syncthreads();
    if (threadIdx.x < 32) scan();
    __syncthreads();
  }
  // Lanes whose experts are as wide as e, and how many of them come before this one.
  __device__ __forceinline__ uint32_t alike_of(int e) const {
    return __match_any_sync(~0u, e < experts ? width[e] : -1);
  }
  static __device__ __forceinline__ int before(uint32_t lanes) {
    return __popc(lanes & ((1u << threadIdx.x % 32) - 1));
  }
  __device__ __forceinline__ int place_of(int e, int groups) const {
    return (max_n / 16 - width[e]) * groups + e / 32;
  }
  // Of the lanes up to this one.
  static __device__ __forceinline__ int sum_upto(int value) {
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
      const int left = __shfl_up_sync(~0u, value, o);
      if (threadIdx.x % 32 >= o) value += left;
    }
    return value;
  }
  // Each of `prefix` becomes the sum of those before it; by a warp.
  __device__ void sum_up(int n) {
    for (int i0 = 0, sum = 0; i0 < n; i0 += 32) {
      const int i = i0 + threadIdx.x, mine = i < n ? prefix[i] : 0, upto = sum + sum_upto(mine);
      if (i < n) prefix[i] = upto - mine;
      sum = __shfl_sync(~0u, upto, 31);
    }
  }

  __device__ void scan() {
    int sum = 0;
    if (threadIdx.x == 0) prefix[0] = 0;
    for (int i0 = 0; i0 < experts; i0 += 32) {
      const int i = i0 + threadIdx.x;
      int items = 0;
      if (i < experts) {
        const int e = order[i];
        items = token_tiles(slots_before(e + 1) - slots_before(e)) * row_tiles;
      }
      const int upto = sum + sum_upto(items);
      if (i < experts) prefix[i + 1] = upto;
      sum = __shfl_sync(~0u, upto, 31);
    }
    if (threadIdx.x == 0) prefix[kMaxExperts] = sum;
  }

  // By a whole warp, before find() of the same item: passes 32 experts at a time.
  __device__ __forceinline__ void advance(int item) {
    for (int passed = 32; passed == 32; cursor += passed) {
      const int i = cursor + static_cast<int>(threadIdx.x % 32);
      passed = __popc(__ballot_sync(~0u, i < experts && prefix[i + 1] <= item));
    }
  }

  // False past the last item. Items are asked for in rising order.
  __device__ __forceinline__ bool find(int item, GemmItem& out) {
    if (item >= prefix[kMaxExperts]) return false;
    while (prefix[cursor + 1] <= item) ++cursor;
    const int e = order[cursor], first = slots_before(e), count = slots_before(e + 1) - first;
    const int tiles = token_tiles(count), i = item - prefix[cursor];
    const int row_tile = tiles == 1 ? i : i / tiles;
    const int t = i - row_tile * tiles;
    out.expert = e;
    out.row0 = row_tile * rows_of_tile;
    out.n = width[e] * 16;
    out.slot0 = first + t * out.n;
    out.valid = min(out.n, count - t * out.n);
    return true;
  }
};

}  // namespace nibble::ops::gpu::sm90
