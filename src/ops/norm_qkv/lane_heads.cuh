// A head of 128 or 256 dims by a warp, four neighbouring dims of each 128 a lane: normed, and
// turned by its position. What turns together meets by shuffles.
#pragma once

#include "cuda/bf16.cuh"
#include "ops/weight.h"

namespace nibble::ops::gpu {

// Whether LaneTurn turns so many dims.
inline bool turns_by_lanes(int32_t rotary) {
  return rotary == 0 || (rotary >= 8 && rotary <= 128 && (rotary & (rotary - 1)) == 0);
}

// What all heads of a token have in common: of dims 4 lane to 4 lane + 3, cosines, and sines with
// the sign that those of the other half of the turned dims get.
struct LaneTurn {
  float4 cos = {1, 1, 1, 1}, sin = {};
  // `angles`: the token's, [rotary].
  __device__ __forceinline__ void load(const float* angles, int32_t rotary) {
    const int32_t half = rotary / 2, i = 4 * static_cast<int32_t>(threadIdx.x % 32);
    if (i >= rotary) return;
    const float* const from = angles + (i & (half - 1));
    cos = *reinterpret_cast<const float4*>(from);
    sin = *reinterpret_cast<const float4*>(from + half);
    if (i < half) sin = {-sin.x, -sin.y, -sin.z, -sin.w};
  }
  // `apart`: lanes between dims that turn together.
  __device__ __forceinline__ float4 operator()(const float4& v, int32_t apart) const {
    const float4 other = {
        __shfl_xor_sync(0xffffffff, v.x, apart), __shfl_xor_sync(0xffffffff, v.y, apart),
        __shfl_xor_sync(0xffffffff, v.z, apart), __shfl_xor_sync(0xffffffff, v.w, apart)};
    return {v.x * cos.x + other.x * sin.x, v.y * cos.y + other.y * sin.y,
            v.z * cos.z + other.z * sin.z, v.w * cos.w + other.w * sin.w};
  }
};

// What norms a warp's head: v / rms(v) * (offset + weight).
template <int kFours>
struct LaneNorm {
  uint2 weight[kFours];  // of the lane's dims
  float eps, offset;

  __device__ __forceinline__ explicit LaneNorm(const Norm& norm)
      : weight{}, eps(norm.eps), offset(norm.offset) {}
  __device__ __forceinline__ void load(const Norm& norm) {
#pragma unroll
    for (int j = 0; j < kFours; ++j)
      weight[j] = *reinterpret_cast<const uint2*>(norm.weight + 128 * j + threadIdx.x % 32 * 4);
  }
};
template <int kFours>
__device__ __forceinline__ void norm_head(float4 (&v)[kFours], const LaneNorm<kFours>& q,
                                          const LaneNorm<kFours>& k, bool is_q) {
  float squares = 0;
#pragma unroll
  for (const float4& x : v)
    squares = fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, fmaf(x.w, x.w, squares))));
#pragma unroll
  for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(0xffffffff, squares, step);
  const float inverse = rsqrtf(squares / (128 * kFours) + (is_q ? q.eps : k.eps));
  const float offset = is_q ? q.offset : k.offset;
#pragma unroll
  for (int j = 0; j < kFours; ++j) {
    const uint32_t low = is_q ? q.weight[j].x : k.weight[j].x;
    const uint32_t high = is_q ? q.weight[j].y : k.weight[j].y;
    v[j].x *= inverse * (offset + cuda::bf16_lo(low));
    v[j].y *= inverse * (offset + cuda::bf16_hi(low));
    v[j].z *= inverse * (offset + cuda::bf16_lo(high));
    v[j].w *= inverse * (offset + cuda::bf16_hi(high));
  }
}

}  // namespace nibble::ops::gpu
