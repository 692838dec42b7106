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

  // By all threads of the block.
  __device__ void make() {
    for (int e = threadIdx.x; e < experts; e += blockDim.x) {
      const int count = slots_before(e + 1) - slots_before(e);
      const int tiles = max(1, token_tiles(count));
      width[e] = ((count + tiles - 1) / tiles + step - 1) / step * (step / 16);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += blockDim.x) {
      const int mine = width[e];
      int rank = 0;
      for (int other = 0; other < experts; ++other)
        rank += width[other] > mine || (width[other] == mine && other < e);
      order[rank] = e;
    }
    __syncthreads();
    if (threadIdx.x < 32) scan();
    __syncthreads();
  }

  __device__ void scan() {
    int before = 0;
    if (threadIdx.x == 0) prefix[0] = 0;
    for (int i0 = 0; i0 < experts; i0 += 32) {
      const int i = i0 + threadIdx.x;
      int items = 0;
      if (i < experts) {
        const int e = order[i];
        items = token_tiles(slots_before(e + 1) - slots_before(e)) * row_tiles;
      }
#pragma unroll
      for (int o = 1; o < 32; o *= 2) {
        const int left = __shfl_up_sync(~0u, items, o);
        if (threadIdx.x >= o) items += left;
      }
      if (i < experts) prefix[i + 1] = before + items;
      before += __shfl_sync(~0u, items, 31);
    }
    if (threadIdx.x == 0) prefix[kMaxExperts] = before;
  }

  // False past the last item. Items are asked for in rising order.
  __device__ __forceinline__ bool find(int item, GemmItem& out) {
    if (item >= prefix[kMaxExperts]) return false;
    while (prefix[cursor + 1] <= item) ++cursor;
    const int e = order[cursor], first = slots_before(e), count = slots_before(e + 1) - first;
    const int tiles = token_tiles(count), i = item - prefix[cursor], row_tile = i / tiles;
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
