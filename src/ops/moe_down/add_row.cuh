// One of a token's choices, as what adds them up does it.
#pragma once

#include "cuda/bf16.cuh"

namespace nibble::ops::gpu {

// sum += weight * eight bf16.
__device__ __forceinline__ void add_row(float (&sum)[8], float weight, const uint4& row) {
  const uint32_t words[4] = {row.x, row.y, row.z, row.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum[2 * i] += weight * cuda::bf16_lo(words[i]);
    sum[2 * i + 1] += weight * cuda::bf16_hi(words[i]);
  }
}

}  // namespace nibble::ops::gpu
