// Device code of y = x + d; h = norm(y) that kernels share. A thread owns groups of 8 neighbouring
// columns; sums run over them in a fixed order: lane tree, then warps in order.
#pragma once

#include "cuda/bf16.cuh"
#include "ops/weight.h"

namespace nibble::ops::gpu {

// x[i] + d[i] for the 8 columns from `column` on. Plain loads: the kernel before wrote them.
__device__ __forceinline__ void add_8(float (&y)[8], const float* x, const float* d,
                                      int64_t column) {
  const float4* a = reinterpret_cast<const float4*>(x + column);
  const float4* b = reinterpret_cast<const float4*>(d + column);
  const float4 a0 = a[0], a1 = a[1], b0 = b[0], b1 = b[1];
  y[0] = a0.x + b0.x, y[1] = a0.y + b0.y, y[2] = a0.z + b0.z, y[3] = a0.w + b0.w;
  y[4] = a1.x + b1.x, y[5] = a1.y + b1.y, y[6] = a1.z + b1.z, y[7] = a1.w + b1.w;
}

__device__ __forceinline__ void store_8(float* y, int64_t column, const float (&v)[8]) {
  float4* to = reinterpret_cast<float4*>(y + column);
  to[0] = {v[0], v[1], v[2], v[3]};
  to[1] = {v[4], v[5], v[6], v[7]};
}

// h = bf16(y * inv * (offset + weight)), 8 columns as four pairs.
__device__ __forceinline__ uint4 norm_8(const float (&y)[8], float inv, const uint4& weight,
                                        float offset) {
  const auto pair = [&](int i, uint32_t w) {
    return cuda::pack_bf16(y[i] * inv * (offset + cuda::bf16_lo(w)),
                           y[i + 1] * inv * (offset + cuda::bf16_hi(w)));
  };
  return {pair(0, weight.x), pair(2, weight.y), pair(4, weight.z), pair(6, weight.w)};
}

__device__ __forceinline__ float sum_of_squares(const float (&y)[8], float sum) {
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = fmaf(y[i], y[i], sum);
  return sum;
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffff, x, step);
  return x;
}

__device__ __forceinline__ float dot_8(const uint4& a, const uint4& b, float sum) {
  const auto add = [&](uint32_t u, uint32_t v) {
    sum = fmaf(cuda::bf16_lo(u), cuda::bf16_lo(v), sum);
    sum = fmaf(cuda::bf16_hi(u), cuda::bf16_hi(v), sum);
  };
  add(a.x, b.x), add(a.y, b.y), add(a.z, b.z), add(a.w, b.w);
  return sum;
}

// 1 / sqrt(mean + eps) from the sums of `kWarps` warps, added in their order.
template <int kWarps>
__device__ __forceinline__ float inverse_rms_of(const float* squares, int hidden, float eps) {
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += squares[w];
  // Little code: the exact division has a slow path.
  return rsqrtf(__fdividef(sum, static_cast<float>(hidden)) + eps);
}
// The same of this warp's and the others' sums; one barrier. `shared` [kWarps].
template <int kWarps>
__device__ __forceinline__ float inverse_rms(float squares, float* shared, int hidden, float eps) {
  squares = warp_sum(squares);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = squares;
  __syncthreads();
  return inverse_rms_of<kWarps>(shared, hidden, eps);
}

}  // namespace nibble::ops::gpu
