// What add_norm does with a row of y, for its kernels: one block a row at a time.
#pragma once

#include "cuda/fp8.cuh"
#include "ops/norm/add_norm.cuh"
#include "ops/norm/add_norm.h"

namespace nibble::ops::gpu {

inline constexpr int kNormWarps = 12;  // 360 groups of 8 columns at H = 2,880
inline constexpr int kNormThreads = kNormWarps * 32;
inline constexpr int kNormGroups = 3;  // of 8 columns, a thread: up to 9,216 columns

// The largest magnitude among this thread's values of h and the others' of its block.
template <int kMine>
__device__ __forceinline__ float largest_of(const uint4 (&h)[kMine], float* shared) {
  float most = 0;
#pragma unroll
  for (int i = 0; i < kMine; ++i)
    for (const uint32_t w : {h[i].x, h[i].y, h[i].z, h[i].w})
      most = fmaxf(most, fmaxf(fabsf(cuda::bf16_lo(w)), fabsf(cuda::bf16_hi(w))));
#pragma unroll
  for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = most;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kNormWarps; ++w) most = fmaxf(most, shared[w]);
  return most;
}

// Eight values, of which four lanes have 32, as two words in E4M3 order (gemm_fp8_sm90.cuh): lane p
// of the four gets bytes 4 p.. of the even columns in x, of the odd ones in y.
__device__ __forceinline__ uint2 in_e4m3_order(const uint4& h, float inverse) {
  const uint32_t words[4] = {h.x, h.y, h.z, h.w};
  uint32_t even = 0, odd = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t a = words[2 * i], b = words[2 * i + 1];
    even |= cuda::e4m3_pair(cuda::bf16_lo(a) * inverse, cuda::bf16_lo(b) * inverse) << 16 * i;
    odd |= cuda::e4m3_pair(cuda::bf16_hi(a) * inverse, cuda::bf16_hi(b) * inverse) << 16 * i;
  }
  const bool second = threadIdx.x % 2 != 0, third = threadIdx.x / 2 % 2 != 0;
  const auto turn = [&](uint32_t mine) {  // byte p of lane i becomes byte i of lane p
    const uint32_t next = __shfl_xor_sync(~0u, mine, 1);
    mine = __byte_perm(mine, next, second ? 0x3715 : 0x6240);
    const uint32_t other = __shfl_xor_sync(~0u, mine, 2);
    return __byte_perm(mine, other, third ? 0x3276 : 0x5410);
  };
  return {turn(even), turn(odd)};
}

// h . gate of the block's token.
template <int kMine>
__device__ __forceinline__ float gate_logit(const uint4 (&h)[kMine], const uint4 (&gate)[kMine],
                                            float* shared) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kMine; ++i) sum = dot_8(h[i], gate[i], sum);
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
#pragma unroll
  for (int w = 0; w < kNormWarps; ++w) sum += shared[w];
  return sum;
}

// What threads of a block keep for all its rows. kMine: groups of 8 columns of a thread.
template <int kMine, bool kE4m3>
class NormRow {
 public:
  // Reads what no kernel in front has written.
  __device__ NormRow(const AddNorm& a, const GateLogits& gated) : a_(a), gated_(gated) {
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      if (!has(i)) continue;
      weight_[i] = cuda::load16(a.norm.weight + column(i));
      if (gated.gate != nullptr) gate_[i] = cuda::load16(gated.gate + column(i));
    }
  }
  __device__ static int column(int i) { return 8 * (i * kNormThreads + threadIdx.x); }
  __device__ bool has(int i) const { return column(i) < a_.hidden; }

  // Of y, 0 where this thread has none: what `a` and `gated` say of this row. By all threads.
  __device__ void store(int64_t row, const float (&y)[kMine][8]) {
    // By turns: a row's sums are written while the last one's may still be read.
    __shared__ float all_squares[2][kNormWarps], all_most[2][kNormWarps], all_gates[2][kNormWarps];
    turn_ ^= 1;
    float *const squares = all_squares[turn_], *const most = all_most[turn_],
                 *const gates = all_gates[turn_];
    const auto hidden = static_cast<int>(a_.hidden);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kMine; ++i) sum = sum_of_squares(y[i], sum);
    const float inv = inverse_rms<kNormWarps>(sum, squares, hidden, a_.norm.eps);
    uint4 h[kMine] = {};
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      if (!has(i)) continue;
      if (a_.rows == nullptr) store_8(a_.y, row * hidden + column(i), y[i]);
      h[i] = norm_8(y[i], inv, weight_[i], a_.norm.offset);
      *reinterpret_cast<uint4*>(a_.h + row * hidden + column(i)) = h[i];
    }
    if (gated_.gate != nullptr) {
      const float logit = gate_logit(h, gate_, gates);
      if (threadIdx.x == 0) gated_.logits[row * gated_.stride] = logit;
    }
    if constexpr (kE4m3) {
      const float largest = largest_of(h, most);
      if (threadIdx.x == 0) a_.e4m3.scales[row] = largest / kE4m3Largest;
      const float inverse = largest > 0 ? kE4m3Largest / largest : 0;
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        const uint2 words = in_e4m3_order(h[i], inverse);
        if (!has(i)) continue;
        uint8_t* to = a_.e4m3.codes + row * hidden + column(i) / 32 * 32 + threadIdx.x % 4 * 4;
        *reinterpret_cast<uint32_t*>(to) = words.x;
        *reinterpret_cast<uint32_t*>(to + 16) = words.y;
      }
    }
  }

 private:
  const AddNorm& a_;
  const GateLogits& gated_;
  uint4 weight_[kMine] = {}, gate_[kMine] = {};
  int turn_ = 0;
};

}  // namespace nibble::ops::gpu
