// Sums of wgmma whose K is shared out to blocks of one kernel, which leave them in L2: the blocks
// of a tile meet, and each adds up some columns, or the last to come adds up all; in the order of
// K.
//
// Bytes: 8 a sum and share, by L2.
#pragma once

#include "cuda/arrivals.cuh"
#include "cuda/mma_sm90.cuh"

namespace nibble::ops::gpu::sm90 {

struct Shares {
  int count;
  float4* parts;       // [tiles, count, kN / 8, threads that multiply]
  uint32_t* counters;  // [tiles], zero
};

// Columns 8j .. 8j + 7 that a block adds up and stores, of every so many j.
struct Columns {
  int step = 1, first = 0;
  __device__ __forceinline__ bool has(int j) const { return j % step == first; }
};

// Where a block leaves a share's sums, and finds all of them.
template <int kN>
__device__ __forceinline__ float4* parts_of(const Shares& shares, int tile, int threads) {
  return shares.parts + int64_t{tile} * shares.count * (kN / 8) * threads + threadIdx.x;
}
template <int kN>
__device__ __forceinline__ void leave_share(float4* parts, int share, int threads,
                                            const float (&d)[kN / 2]) {
  parts += share * (kN / 8) * threads;
#pragma unroll
  for (int j = 0; j < kN / 8; ++j)
    parts[j * threads] = {d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]};
}

// d: this thread's sums of a share, then all shares' sums, false if another block has them. By all
// threads of the block, of which the first `threads` multiply; behind griddep_wait().
template <int kN>
__device__ __forceinline__ bool add_shares_last(const Shares& shares, int tile, int share,
                                                int threads, float (&d)[kN / 2]) {
  __shared__ bool is_last;
  const bool multiplies = static_cast<int>(threadIdx.x) < threads;
  float4* const parts = parts_of<kN>(shares, tile, threads);
  if (multiplies) leave_share<kN>(parts, share, threads, d);
  __syncthreads();
  if (threadIdx.x == 0) is_last = cuda::is_last_arrival(shares.counters + tile, shares.count);
  __syncthreads();
  if (!is_last || !multiplies) return false;
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) d[i] = 0;
#pragma unroll 2
  for (int s = 0; s < shares.count; ++s) {
    float4 v[kN / 8];
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) v[j] = __ldcg(parts + (s * (kN / 8) + j) * threads);
#pragma unroll
    for (int j = 0; j < kN / 8; ++j)
      d[4 * j] += v[j].x, d[4 * j + 1] += v[j].y, d[4 * j + 2] += v[j].z, d[4 * j + 3] += v[j].w;
  }
  return true;
}

// The same of the columns that this block has, by all threads; no more blocks in all than a GPU
// holds of the kernel at once (cuda::meet).
template <int kN>
__device__ __forceinline__ void meet_shares(const Shares& shares, int tile, int share, int threads,
                                            float (&d)[kN / 2]) {
  const Columns mine{shares.count, share};
  float4* const parts = parts_of<kN>(shares, tile, threads);
  leave_share<kN>(parts, share, threads, d);
  __syncthreads();
  if (threadIdx.x == 0) cuda::meet(shares.counters + tile, shares.count);
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
    if (!mine.has(j)) continue;
    float4 sum{};
#pragma unroll 8
    for (int s = 0; s < shares.count; ++s) {
      const float4 v = __ldcg(parts + (s * (kN / 8) + j) * threads);
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    d[4 * j] = sum.x, d[4 * j + 1] = sum.y, d[4 * j + 2] = sum.z, d[4 * j + 3] = sum.w;
  }
}

// What turns a warp's 16 rows of sums into y: row g, and g + 8.
struct RowEnds {
  float back[2] = {1, 1}, bias[2] = {};

  __device__ __forceinline__ void read_bias(const uint16_t* bias_of, int row) {
    if (bias_of == nullptr) return;
    bias[0] = __uint_as_float(bias_of[row] << 16);
    bias[1] = __uint_as_float(bias_of[row + 8] << 16);
  }
};

// 16 rows from row0 on: a lane has rows g and g + 8, columns 8j + 2p and + 1. Even rows keep the
// first column, odd ones the second, each with its neighbour's row: op.store() of pairs.
template <int kN, class Op>
__device__ __forceinline__ void store_sums(const float (&d)[kN / 2], const Columns& mine,
                                           const RowEnds& ends, int row0, int tokens,
                                           const Op& op) {
  const int lane = threadIdx.x % 32, even = row0 + lane / 4 / 2 * 2;
  const bool odd = lane / 4 & 1;
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
    if (!mine.has(j)) continue;
    const float v0 = fmaf(d[4 * j], ends.back[0], ends.bias[0]);
    const float v1 = fmaf(d[4 * j + 1], ends.back[0], ends.bias[0]);
    const float v2 = fmaf(d[4 * j + 2], ends.back[1], ends.bias[1]);
    const float v3 = fmaf(d[4 * j + 3], ends.back[1], ends.bias[1]);
    const float r0 = __shfl_xor_sync(~0u, odd ? v0 : v1, 4);
    const float r1 = __shfl_xor_sync(~0u, odd ? v2 : v3, 4);
    const int token = 8 * j + 2 * (lane % 4) + odd;
    if (token >= tokens) continue;
    op.store(token, even, odd ? float2{r0, v1} : float2{v0, r0});
    op.store(token, even + 8, odd ? float2{r1, v3} : float2{v2, r1});
  }
}

}  // namespace nibble::ops::gpu::sm90
