// Attention of one token to 16 keys at a time, by one warp, straight from pages in global memory:
// the up to 8 query heads of a KV head are the 8 columns of mma m16n8k16, the keys its rows
// (scores, S^T = K Q^T) or its depth (values, O^T = V^T P^T). The order of D inside a dot product,
// and that of the dims of O^T, are free, so that 8- and 16-byte loads are fragments; values of two
// keys are paired by PRMT, weights by a transpose of 8x8. E4M3 goes through f16, which holds it.
//
// Lost: norm, qkv, rope, append and attention of one token as one kernel: docs/lab/attention.md.
#pragma once

#include <cfloat>
#include <cmath>

#include "cuda/bf16.cuh"
#include "cuda/fp8.cuh"
#include "cuda/mma_bf16.cuh"
#include "ops/attention/attention_arguments.cuh"

namespace nibble::ops::gpu::one_token {

using namespace attention_kernel;  // NOLINT

inline constexpr int kTile = kPageKeys;
inline constexpr float kBoost = 8;

using nibble::cuda::load16;
using nibble::cuda::load8;
using nibble::cuda::pack_bf16;

// Positions that the token sees.
struct Visible {
  int32_t first, last;
};

// 16 keys and values of one KV head, as bf16 or E4M3. Lane l: g = l / 4, p = l % 4.
template <bool kFp8>
struct Tile {
  uint4 k[4];  // key g dims 8p.., 32 + 8p..; key g + 8 the same
  uint4 v[4];  // keys 2p, 2p + 1, 2p + 8, 2p + 9, dims 8g..
};
template <>
struct Tile<true> {
  uint4 k[2];  // keys g, g + 8, dims 16p..
  uint2 v[4];  // keys 2p, 2p + 1, 2p + 8, 2p + 9, dims 8g..
};

// `at`: index of element 0 of the tile's first key.
__device__ __forceinline__ void load_keys(Tile<false>& tile, const void* pages, int64_t at) {
  const int lane = threadIdx.x % 32;
  const uint16_t* k = static_cast<const uint16_t*>(pages) + at + (lane / 4 * kDim + lane % 4 * 8);
  tile.k[0] = load16(k), tile.k[1] = load16(k + kDim / 2);
  tile.k[2] = load16(k + 8 * kDim), tile.k[3] = load16(k + 8 * kDim + kDim / 2);
}
__device__ __forceinline__ void load_keys(Tile<true>& tile, const void* pages, int64_t at) {
  const int lane = threadIdx.x % 32;
  const uint8_t* k = static_cast<const uint8_t*>(pages) + at + (lane / 4 * kDim + lane % 4 * 16);
  tile.k[0] = load16(k), tile.k[1] = load16(k + 8 * kDim);
}
__device__ __forceinline__ void load_values(Tile<false>& tile, const void* pages, int64_t at) {
  const int lane = threadIdx.x % 32;
  const uint16_t* v =
      static_cast<const uint16_t*>(pages) + at + (lane % 4 * 2 * kDim + lane / 4 * 8);
  tile.v[0] = load16(v), tile.v[1] = load16(v + kDim);
  tile.v[2] = load16(v + 8 * kDim), tile.v[3] = load16(v + 9 * kDim);
}
__device__ __forceinline__ void load_values(Tile<true>& tile, const void* pages, int64_t at) {
  const int lane = threadIdx.x % 32;
  const uint8_t* v = static_cast<const uint8_t*>(pages) + at + (lane % 4 * 2 * kDim + lane / 4 * 8);
  tile.v[0] = load8(v), tile.v[1] = load8(v + kDim);
  tile.v[2] = load8(v + 8 * kDim), tile.v[3] = load8(v + 9 * kDim);
}

// Brings a tile into L2. A line of 128 bytes a lane: keys, then values.
template <bool kFp8>
__device__ __forceinline__ void prefetch_tile(const void* k, const void* v, int64_t at) {
  constexpr int kElement = kFp8 ? 1 : 2, kLines = kTile * kDim * kElement / 128;
  const int line = threadIdx.x % 32;
  if (line >= 2 * kLines) return;
  const auto* from = static_cast<const uint8_t*>(line < kLines ? k : v);
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at * kElement + line % kLines * 128));
}

// A query of one head, lane g's, as the keys' fragments want it: bf16, dims 8p.. and 32 + 8p..; or
// f16, dims 16p...
template <bool kFp8>
__device__ __forceinline__ void load_query(uint4 (&q)[2], const uint16_t* from) {
  const int p = threadIdx.x % 4;
  if constexpr (kFp8) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 w = load16(from + 16 * p + 8 * i);
      q[i] = {cuda::f16_of_bf16(w.x), cuda::f16_of_bf16(w.y), cuda::f16_of_bf16(w.z),
              cuda::f16_of_bf16(w.w)};
    }
  } else {
    q[0] = load16(from + 8 * p), q[1] = load16(from + 8 * p + kDim / 2);
  }
}

// Largest scores, sums of exponentials and weighted values of heads 2p and 2p + 1, so far. o[j]:
// dims 8g + 2j of both heads, then dims 8g + 2j + 1.
struct State {
  float top[2], sum[2], o[4][4];
};

__device__ __forceinline__ float max_of_keys(float x) {  // over the lanes' g
#pragma unroll
  for (int step = 4; step < 32; step *= 2) x = fmaxf(x, __shfl_xor_sync(kAll, x, step));
  return x;
}

// Products of queries and keys: d[0], d[1]: key g, heads 2p and 2p + 1; d[2], d[3]: key g + 8. In
// two chains of half the length.
__device__ __forceinline__ void multiply(float (&d)[2][4], const Tile<false>& tile,
                                         const uint4 (&q)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint4 &k = tile.k[i], &k8 = tile.k[2 + i];
    cuda::mma_bf16(d[i], k.x, k8.x, k.y, k8.y, q[i].x, q[i].y);
    cuda::mma_bf16(d[i], k.z, k8.z, k.w, k8.w, q[i].z, q[i].w);
  }
}
__device__ __forceinline__ void multiply(float (&d)[2][4], const Tile<true>& tile,
                                         const uint4 (&q)[2]) {
  const auto add = [](float(&sum)[4], uint32_t k, uint32_t k8, uint32_t q0, uint32_t q1) {
    cuda::mma_f16(sum, cuda::f16_of_e4m3_lo(k), cuda::f16_of_e4m3_lo(k8), cuda::f16_of_e4m3_hi(k),
                  cuda::f16_of_e4m3_hi(k8), q0, q1);
  };
  const uint4 &k = tile.k[0], &k8 = tile.k[1];
  add(d[0], k.x, k8.x, q[0].x, q[0].y), add(d[0], k.y, k8.y, q[0].z, q[0].w);
  add(d[1], k.z, k8.z, q[1].x, q[1].y), add(d[1], k.w, k8.w, q[1].z, q[1].w);
}

// The products as scores, in powers of two; -inf: not seen.
template <bool kFp8>
__device__ __forceinline__ void score(float (&s)[4], const Tile<kFp8>& tile, const uint4 (&q)[2],
                                      int32_t index, Visible seen, float scale) {
  float d[2][4] = {};
  multiply(d, tile, q);
  const int32_t key = index * kTile + threadIdx.x % 32 / 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32_t pos = key + 8 * (i / 2);
    s[i] = pos >= seen.first && pos <= seen.last ? (d[0][i] + d[1][i]) * scale : -INFINITY;
  }
}

// Scores become weights, 2^kBoost where the score is the largest so far, so that f16 holds small
// ones; what is summed so far shrinks where a larger score has come.
__device__ __forceinline__ void weigh(State& state, float (&s)[4]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float top = fmaxf(state.top[h], max_of_keys(fmaxf(s[h], s[2 + h])));
    const float shrink = exp2_fast(state.top[h] - top);
    s[h] = exp2_fast(s[h] - (top - kBoost)), s[2 + h] = exp2_fast(s[2 + h] - (top - kBoost));
    state.top[h] = top;
    state.sum[h] = state.sum[h] * shrink + (s[h] + s[2 + h]);
#pragma unroll
    for (int j = 0; j < 4; ++j) state.o[j][h] *= shrink, state.o[j][2 + h] *= shrink;
  }
}

// Values of positions that are not seen may be anything, NaN too.
template <bool kFp8>
__device__ __forceinline__ void clear_unseen(Tile<kFp8>& tile, int32_t index, Visible seen) {
  const int32_t first = index * kTile;
  if (first >= seen.first && first + kTile - 1 <= seen.last) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32_t pos = first + 2 * (threadIdx.x % 4) + i % 2 + 8 * (i / 2);
    if (pos < seen.first || pos > seen.last) tile.v[i] = {};
  }
}

// o += V^T P^T for weights p laid out as scores are.
__device__ __forceinline__ void add_values(State& state, const Tile<false>& tile,
                                           const float (&p)[4]) {
  const uint32_t b0 = cuda::transpose_8x8(pack_bf16(p[0], p[1]));
  const uint32_t b1 = cuda::transpose_8x8(pack_bf16(p[2], p[3]));
  const auto add = [&](int j, uint32_t va, uint32_t vb, uint32_t vc, uint32_t vd) {
    constexpr unsigned kLow = 0x5410, kHigh = 0x7632;
    cuda::mma_bf16(state.o[j], __byte_perm(va, vb, kLow), __byte_perm(va, vb, kHigh),
                   __byte_perm(vc, vd, kLow), __byte_perm(vc, vd, kHigh), b0, b1);
  };
  const uint4(&v)[4] = tile.v;
  add(0, v[0].x, v[1].x, v[2].x, v[3].x);
  add(1, v[0].y, v[1].y, v[2].y, v[3].y);
  add(2, v[0].z, v[1].z, v[2].z, v[3].z);
  add(3, v[0].w, v[1].w, v[2].w, v[3].w);
}

__device__ __forceinline__ void add_values(State& state, const Tile<true>& tile,
                                           const float (&p)[4]) {
  const uint32_t b0 = cuda::transpose_8x8(cuda::pack_f16(p[0], p[1]));
  const uint32_t b1 = cuda::transpose_8x8(cuda::pack_f16(p[2], p[3]));
  // Dims 8g + 2j and 8g + 2j + 1 of two keys side by side.
  const auto add = [&](int j, uint32_t v01, uint32_t v89) {
    cuda::mma_f16(state.o[j], cuda::f16_of_e4m3_lo(v01), cuda::f16_of_e4m3_hi(v01),
                  cuda::f16_of_e4m3_lo(v89), cuda::f16_of_e4m3_hi(v89), b0, b1);
  };
  constexpr unsigned kLow = 0x5140, kHigh = 0x7362;
  const uint2(&v)[4] = tile.v;
  add(0, __byte_perm(v[0].x, v[1].x, kLow), __byte_perm(v[2].x, v[3].x, kLow));
  add(1, __byte_perm(v[0].x, v[1].x, kHigh), __byte_perm(v[2].x, v[3].x, kHigh));
  add(2, __byte_perm(v[0].y, v[1].y, kLow), __byte_perm(v[2].y, v[3].y, kLow));
  add(3, __byte_perm(v[0].y, v[1].y, kHigh), __byte_perm(v[2].y, v[3].y, kHigh));
}

}  // namespace nibble::ops::gpu::one_token
