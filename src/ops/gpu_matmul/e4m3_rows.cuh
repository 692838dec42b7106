// What the kernels that round rows of bf16 to E4M3 share; the order of the codes is their own.
#pragma once

#include "cuda/bf16.cuh"
#include "ops/gpu_matmul/e4m3_rows.h"

namespace nibble::ops::gpu {

// By a block, of row blockIdx.x: stores its scale, and returns what its values are multiplied by.
template <int kThreads>
__device__ __forceinline__ float scale_row(const E4m3Rows& out, const uint16_t* x, int cols) {
  __shared__ float most[kThreads / 32];
  const int64_t row = blockIdx.x;
  const auto* from = reinterpret_cast<const uint4*>(x + row * cols);
  float largest = 0;
  for (int i = threadIdx.x; i < cols / 8; i += kThreads) {
    const uint4 q = from[i];
    for (const uint32_t w : {q.x, q.y, q.z, q.w})
      largest = fmaxf(largest, fmaxf(fabsf(cuda::bf16_lo(w)), fabsf(cuda::bf16_hi(w))));
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  if (threadIdx.x % 32 == 0) most[threadIdx.x / 32] = largest;
  __syncthreads();
  largest = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
  if (threadIdx.x == 0) out.scales[row] = largest / kE4m3Largest;
  return largest > 0 ? kE4m3Largest / largest : 0;
}

}  // namespace nibble::ops::gpu
