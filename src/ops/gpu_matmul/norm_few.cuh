// norm_token() (gemv_one.cuh) of some tokens at once, each as by itself.
#pragma once

#include "ops/gpu_matmul/gemv_one.cuh"
#include "ops/gpu_matmul/rows_products.h"

namespace nibble::ops::gpu {

static_assert(kFewNormColumns <= kNormColumns);
// A thread takes kFewNormLoads groups of 8 columns, whole warps those of a token.
template <int kThreads, int kTokens>
class NormFew {
 public:
  // In front of the wait.
  __device__ __forceinline__ NormFew(const NormInput& n, int tokens)
      : n_(n), tokens_(tokens), groups_((n.hidden + 255) / 256 * 32) {
#pragma unroll
    for (int r = 0; r < kFewNormLoads; ++r) {
      if (!has(r)) continue;
      weight_[r] = *reinterpret_cast<const uint4*>(n.weight + column(r));
      if (n.is_x_old) load(y_[r], n.x, r);
    }
  }
  // Behind it: h to rows `stride` apart. The last block stores y and h, too. One barrier.
  __device__ __forceinline__ void run(uint16_t* h, int stride) {
    __shared__ float squares[kTokens][kNormWarps];
    float d[kFewNormLoads][8];
#pragma unroll
    for (int r = 0; r < kFewNormLoads; ++r) {
      if (!has(r)) continue;
      if (!n_.is_x_old) load(y_[r], n_.x, r);
      load(d[r], n_.d, r);
    }
#pragma unroll
    for (int r = 0; r < kFewNormLoads; ++r) {
      float sum = 0;
      if (has(r)) {
#pragma unroll
        for (int i = 0; i < 8; ++i) y_[r][i] += d[r][i];
        sum = sum_of_squares(y_[r], 0);
      }
      sum = warp_sum(sum);
      if (threadIdx.x % 32 == 0 && token(r) < tokens_) squares[token(r)][warp(r)] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kFewNormLoads; ++r) {
      if (!has(r)) continue;
      float sum = 0;  // of warps in their order
#pragma unroll
      for (int w = 0; w < kNormWarps; ++w)
        if (w < groups_ / 32) sum += squares[token(r)][w];
      const float inv = rsqrtf(__fdividef(sum, static_cast<float>(n_.hidden)) + n_.eps);
      const uint4 v = norm_8(y_[r], inv, weight_[r], n_.offset);
      *reinterpret_cast<uint4*>(h + token(r) * stride + column(r)) = v;
      if (blockIdx.x + 1 != gridDim.x) continue;
      if (n_.y != nullptr) store_8(n_.y, at(r), y_[r]);
      *reinterpret_cast<uint4*>(n_.h + at(r)) = v;
    }
  }

 private:
  __device__ __forceinline__ int index(int r) const {
    return r * kThreads + static_cast<int>(threadIdx.x);
  }
  __device__ __forceinline__ int token(int r) const {
    int t = 0;
#pragma unroll
    for (int i = 1; i <= kTokens; ++i) t += index(r) >= i * groups_;
    return t;
  }
  __device__ __forceinline__ int group(int r) const { return index(r) - token(r) * groups_; }
  __device__ __forceinline__ int warp(int r) const { return group(r) / 32; }
  __device__ __forceinline__ int column(int r) const { return 8 * group(r); }
  __device__ __forceinline__ bool has(int r) const {
    return token(r) < tokens_ && column(r) < n_.hidden;
  }
  __device__ __forceinline__ int at(int r) const { return token(r) * n_.hidden + column(r); }
  __device__ __forceinline__ void load(float (&to)[8], const float* from, int r) const {
    const auto* v = reinterpret_cast<const float4*>(from + at(r));
    const float4 a = __ldcg(v), b = __ldcg(v + 1);
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
    to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
  }

  const NormInput& n_;
  const int tokens_, groups_;
  uint4 weight_[kFewNormLoads];
  float y_[kFewNormLoads][8];
};

}  // namespace nibble::ops::gpu
