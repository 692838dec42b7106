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
#include <type_traits>

#include "cuda/bf16.cuh"
#include "cuda/fp8.cuh"
#include "cuda/mma_bf16.cuh"
#include "ops/attention/attention_arguments.cuh"

namespace nibble::ops::gpu::one_token {

using namespace attention_kernel;  // NOLINT

inline constexpr int kTile = kPageKeys;
inline constexpr float kBoost = 8;

// A group of more than 8 heads is taken in parts, whose items find the keys in L2.
inline constexpr int kHeads = 8;  // columns of the matrix product
struct HeadParts {
  int32_t count, heads;  // of a group; of a part, but for the last
  static HeadParts of(int32_t group) {
    const int32_t count = (group + kHeads - 1) / kHeads;
    return {count, (group + count - 1) / count};
  }
  __device__ __forceinline__ int32_t kv_head(int32_t column) const {
    return count == 1 ? column : column / count;  // mostly saves a division
  }
};
// The query heads of a column, that is a part of a KV head's.
struct Heads {
  int32_t first, count;
  static __device__ __forceinline__ Heads of(const Arguments& a, HeadParts parts, int32_t column) {
    const int32_t kv_head = parts.kv_head(column);
    const int32_t before = (column - kv_head * parts.count) * parts.heads;
    return {kv_head * a.group + before, min(parts.heads, a.group - before)};
  }
};

using nibble::cuda::load16;
using nibble::cuda::load8;
using nibble::cuda::pack_bf16;

// Positions that the token sees.
struct Visible {
  int32_t first, last;
};

// 16 keys and values of one KV head, as bf16 or E4M3, in panels of 64 dims. Lane l: g = l / 4, p =
// l % 4. Of panel c:
//   bf16: k[4c..]: dims 8p.., 32 + 8p.. of key g, the same of key g + 8
//   E4M3: k[2c..]: dims 16p.. of keys g, g + 8
//   v[4c..]: keys 2p, 2p + 1, 2p + 8, 2p + 9, dims 8g..
template <int kDim, bool kFp8>
struct Tile {
  static constexpr int kPanels = kDim / 64;
  using Codes = std::conditional_t<kFp8, uint2, uint4>;  // of 8 dims
  uint4 k[kPanels * (kFp8 ? 2 : 4)];
  Codes v[kPanels * 4];
};

// `at`: index of element 0 of the tile's first key.
template <int kDim>
__device__ __forceinline__ void load_keys(Tile<kDim, false>& tile, const void* pages, int64_t at) {
  const int lane = threadIdx.x % 32;
  const uint16_t* k = static_cast<const uint16_t*>(pages) + at + (lane / 4 * kDim + lane % 4 * 8);
#pragma unroll
  for (int c = 0; c < kDim / 64; ++c) {
    tile.k[4 * c] = load16(k + 64 * c), tile.k[4 * c + 1] = load16(k + 64 * c + 32);
    tile.k[4 * c + 2] = load16(k + 8 * kDim + 64 * c);
    tile.k[4 * c + 3] = load16(k + 8 * kDim + 64 * c + 32);
  }
}
template <int kDim>
__device__ __forceinline__ void load_keys(Tile<kDim, true>& tile, const void* pages, int64_t at) {
  const int lane = threadIdx.x % 32;
  const uint8_t* k = static_cast<const uint8_t*>(pages) + at + (lane / 4 * kDim + lane % 4 * 16);
#pragma unroll
  for (int c = 0; c < kDim / 64; ++c)
    tile.k[2 * c] = load16(k + 64 * c), tile.k[2 * c + 1] = load16(k + 8 * kDim + 64 * c);
}
template <int kDim, bool kFp8>
__device__ __forceinline__ void load_values(Tile<kDim, kFp8>& tile, const void* pages, int64_t at) {
  constexpr int kElement = kFp8 ? 1 : 2;
  const int lane = threadIdx.x % 32;
  const uint8_t* v =
      static_cast<const uint8_t*>(pages) + kElement * (at + (lane % 4 * 2 * kDim + lane / 4 * 8));
#pragma unroll
  for (int c = 0; c < kDim / 64; ++c)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint8_t* from = v + kElement * ((i % 2 + i / 2 * 8) * kDim + 64 * c);
      if constexpr (kFp8)
        tile.v[4 * c + i] = load8(from);
      else
        tile.v[4 * c + i] = load16(from);
    }
}

// Brings a tile into L2. A line of 128 bytes a lane: keys, then values.
template <int kDim, bool kFp8>
__device__ __forceinline__ void prefetch_tile(const void* k, const void* v, int64_t at) {
  constexpr int kElement = kFp8 ? 1 : 2, kLines = kTile * kDim * kElement / 128;
#pragma unroll
  for (int i = 0; i < (2 * kLines + 31) / 32; ++i) {
    const int line = threadIdx.x % 32 + 32 * i;
    if (line >= 2 * kLines) return;
    const auto* from = static_cast<const uint8_t*>(line < kLines ? k : v);
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at * kElement + line % kLines * 128));
  }
}

// A query of one head, lane g's, as the keys' fragments want it: of each panel bf16, dims 8p.. and
// 32 + 8p..; or f16, dims 16p... Of 256 dims it stays in L1, for a tile takes most registers.
template <int kDim, bool kFp8>
struct Query {
  static constexpr bool kHeld = kDim < 256;
  uint4 held[kHeld ? kDim / 32 : 1];
  const uint16_t* from;

  __device__ __forceinline__ void load(const uint16_t* at) {
    from = at;
    if constexpr (kHeld) {
#pragma unroll
      for (int i = 0; i < kDim / 32; ++i) held[i] = fetch(i / 2, i % 2);
    }
  }
  // Half `i` of panel c.
  __device__ __forceinline__ uint4 part(int c, int i) const {
    if constexpr (kHeld)
      return held[2 * c + i];
    else
      return fetch(c, i);
  }

 private:
  __device__ __forceinline__ uint4 fetch(int c, int i) const {
    const int p = threadIdx.x % 4;
    if constexpr (!kFp8) return load16(from + 64 * c + 8 * p + 32 * i);
    const uint4 w = load16(from + 64 * c + 16 * p + 8 * i);
    return {cuda::f16_of_bf16(w.x), cuda::f16_of_bf16(w.y), cuda::f16_of_bf16(w.z),
            cuda::f16_of_bf16(w.w)};
  }
};

// Largest scores, sums of exponentials and weighted values of heads 2p and 2p + 1, so far. o[4c +
// j]: dims 64c + 8g + 2j of both heads, then dims 64c + 8g + 2j + 1.
template <int kDim>
struct State {
  float top[2] = {-FLT_MAX, -FLT_MAX}, sum[2] = {}, o[kDim / 16][4] = {};
};

__device__ __forceinline__ float max_of_keys(float x) {  // over the lanes' g
#pragma unroll
  for (int step = 4; step < 32; step *= 2) x = fmaxf(x, __shfl_xor_sync(kAll, x, step));
  return x;
}

// Products of queries and keys: d[0], d[1]: key g, heads 2p and 2p + 1; d[2], d[3]: key g + 8. In
// two chains of half the length.
template <int kDim, class Queries>
__device__ __forceinline__ void multiply(float (&d)[2][4], const Tile<kDim, false>& tile,
                                         const Queries& query) {
#pragma unroll
  for (int c = 0; c < kDim / 64; ++c) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 &k = tile.k[4 * c + i], &k8 = tile.k[4 * c + 2 + i], q = query.part(c, i);
      cuda::mma_bf16(d[i], k.x, k8.x, k.y, k8.y, q.x, q.y);
      cuda::mma_bf16(d[i], k.z, k8.z, k.w, k8.w, q.z, q.w);
    }
  }
}
template <int kDim, class Queries>
__device__ __forceinline__ void multiply(float (&d)[2][4], const Tile<kDim, true>& tile,
                                         const Queries& query) {
  const auto add = [](float(&sum)[4], uint32_t k, uint32_t k8, uint32_t q0, uint32_t q1) {
    cuda::mma_f16(sum, cuda::f16_of_e4m3_lo(k), cuda::f16_of_e4m3_lo(k8), cuda::f16_of_e4m3_hi(k),
                  cuda::f16_of_e4m3_hi(k8), q0, q1);
  };
#pragma unroll
  for (int c = 0; c < kDim / 64; ++c) {
    const uint4 q[2] = {query.part(c, 0), query.part(c, 1)};
    const uint4 &k = tile.k[2 * c], &k8 = tile.k[2 * c + 1];
    add(d[0], k.x, k8.x, q[0].x, q[0].y), add(d[0], k.y, k8.y, q[0].z, q[0].w);
    add(d[1], k.z, k8.z, q[1].x, q[1].y), add(d[1], k.w, k8.w, q[1].z, q[1].w);
  }
}

// The products as scores, in powers of two; -inf: not seen.
template <int kDim, bool kFp8, class Queries>
__device__ __forceinline__ void score(float (&s)[4], const Tile<kDim, kFp8>& tile, const Queries& q,
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
template <int kDim>
__device__ __forceinline__ void weigh(State<kDim>& state, float (&s)[4]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float top = fmaxf(state.top[h], max_of_keys(fmaxf(s[h], s[2 + h])));
    const float shrink = exp2_fast(state.top[h] - top);
    s[h] = exp2_fast(s[h] - (top - kBoost)), s[2 + h] = exp2_fast(s[2 + h] - (top - kBoost));
    state.top[h] = top;
    state.sum[h] = state.sum[h] * shrink + (s[h] + s[2 + h]);
#pragma unroll
    for (int j = 0; j < kDim / 16; ++j) state.o[j][h] *= shrink, state.o[j][2 + h] *= shrink;
  }
}

// Values of positions that are not seen may be anything, NaN too.
template <int kDim, bool kFp8>
__device__ __forceinline__ void clear_unseen(Tile<kDim, kFp8>& tile, int32_t index, Visible seen) {
  const int32_t first = index * kTile;
  if (first >= seen.first && first + kTile - 1 <= seen.last) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32_t pos = first + 2 * (threadIdx.x % 4) + i % 2 + 8 * (i / 2);
    if (pos >= seen.first && pos <= seen.last) continue;
#pragma unroll
    for (int c = 0; c < kDim / 64; ++c) tile.v[4 * c + i] = {};
  }
}

// o += V^T P^T for weights p laid out as scores are.
template <int kDim>
__device__ __forceinline__ void add_values(State<kDim>& state, const Tile<kDim, false>& tile,
                                           const float (&p)[4]) {
  const uint32_t b0 = cuda::transpose_8x8(pack_bf16(p[0], p[1]));
  const uint32_t b1 = cuda::transpose_8x8(pack_bf16(p[2], p[3]));
  const auto add = [&](int j, uint32_t va, uint32_t vb, uint32_t vc, uint32_t vd) {
    constexpr unsigned kLow = 0x5410, kHigh = 0x7632;
    cuda::mma_bf16(state.o[j], __byte_perm(va, vb, kLow), __byte_perm(va, vb, kHigh),
                   __byte_perm(vc, vd, kLow), __byte_perm(vc, vd, kHigh), b0, b1);
  };
#pragma unroll
  for (int c = 0; c < kDim / 64; ++c) {
    const uint4* v = tile.v + 4 * c;
    add(4 * c, v[0].x, v[1].x, v[2].x, v[3].x);
    add(4 * c + 1, v[0].y, v[1].y, v[2].y, v[3].y);
    add(4 * c + 2, v[0].z, v[1].z, v[2].z, v[3].z);
    add(4 * c + 3, v[0].w, v[1].w, v[2].w, v[3].w);
  }
}

template <int kDim>
__device__ __forceinline__ void add_values(State<kDim>& state, const Tile<kDim, true>& tile,
                                           const float (&p)[4]) {
  const uint32_t b0 = cuda::transpose_8x8(cuda::pack_f16(p[0], p[1]));
  const uint32_t b1 = cuda::transpose_8x8(cuda::pack_f16(p[2], p[3]));
  // Dims 8g + 2j and 8g + 2j + 1 of two keys side by side.
  const auto add = [&](int j, uint32_t v01, uint32_t v89) {
    cuda::mma_f16(state.o[j], cuda::f16_of_e4m3_lo(v01), cuda::f16_of_e4m3_hi(v01),
                  cuda::f16_of_e4m3_lo(v89), cuda::f16_of_e4m3_hi(v89), b0, b1);
  };
  constexpr unsigned kLow = 0x5140, kHigh = 0x7362;
#pragma unroll
  for (int c = 0; c < kDim / 64; ++c) {
    const uint2* v = tile.v + 4 * c;
    add(4 * c, __byte_perm(v[0].x, v[1].x, kLow), __byte_perm(v[2].x, v[3].x, kLow));
    add(4 * c + 1, __byte_perm(v[0].x, v[1].x, kHigh), __byte_perm(v[2].x, v[3].x, kHigh));
    add(4 * c + 2, __byte_perm(v[0].y, v[1].y, kLow), __byte_perm(v[2].y, v[3].y, kLow));
    add(4 * c + 3, __byte_perm(v[0].y, v[1].y, kHigh), __byte_perm(v[2].y, v[3].y, kHigh));
  }
}

__device__ __forceinline__ float sum_of_keys(float x) {  // over the lanes' g
#pragma unroll
  for (int step = 4; step < 32; step *= 2) x += __shfl_xor_sync(kAll, x, step);
  return x;
}

// Dims 64c + 8g.. of head 2p + h.
template <int kDim>
__device__ __forceinline__ void store_panel(float* to, const State<kDim>& state, int c, int h) {
  const auto o = [&](int j) { return float2{state.o[4 * c + j][h], state.o[4 * c + j][2 + h]}; };
  const float2 a = o(0), b = o(1), d = o(2), e = o(3);
  reinterpret_cast<float4*>(to)[0] = {a.x, a.y, b.x, b.y};
  reinterpret_cast<float4*>(to)[1] = {d.x, d.y, e.x, e.y};
}

__device__ __forceinline__ float sink_of(const Arguments& a, int32_t head) {
  return a.sinks == nullptr ? -INFINITY : cuda::bf16_value(a.sinks[head]) * kLog2e;
}

// What the splits of a token's keys leave: of each head weighted values, largest score and sum of
// weights.
struct PartsAt {
  float* o = nullptr;
  float2* sums = nullptr;
};

// kNum heads of a token from their splits' parts, which lie kHeads apart, in their order; by a
// warp. `att`, `at`: of the first.
template <int kDim, int kNum>
__device__ __forceinline__ void merge_splits(uint16_t* att, const PartsAt& parts, int64_t at,
                                             int32_t splits, const float (&sinks)[kNum],
                                             float v_scale) {
  // A part of 64 dims takes half a warp, and two are fetched at once.
  constexpr int kLanes = kDim == 64 ? 16 : 32, kAtOnce = 32 / kLanes;
  constexpr int kVectors = kDim / 4 / kLanes, kBatch = 4 / kVectors;  // loads in flight a lane
  const int lane = threadIdx.x % 32, mine = lane / kLanes;
  float4 o[kNum][kBatch][kVectors], sum[kNum][kVectors] = {};
  const auto fetch = [&](int first) {
#pragma unroll
    for (int i = 0; i < kNum * kBatch; ++i)
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int h = i / kBatch, split = first + kAtOnce * (i % kBatch) + mine;
        const auto* from =
            reinterpret_cast<const float4*>(parts.o + (at + h + split * kHeads) * kDim);
        o[h][i % kBatch][v] =
            split < splits ? __ldcg(from + v * kLanes + lane % kLanes) : float4{0, 0, 0, 0};
      }
  };
  fetch(0);
  float weight[kNum], inv[kNum];
  float2 part[kNum];
#pragma unroll
  for (int h = 0; h < kNum; ++h)
    part[h] = lane < splits ? __ldcg(parts.sums + at + h + lane * kHeads) : float2{-INFINITY, 0};
#pragma unroll
  for (int h = 0; h < kNum; ++h) {
    float top = fmaxf(part[h].x, sinks[h]);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) top = fmaxf(top, __shfl_xor_sync(kAll, top, step));
    weight[h] = exp2_fast(part[h].x - top);
    float all = part[h].y * weight[h];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) all += __shfl_xor_sync(kAll, all, step);
    inv[h] = v_scale / (all + exp2_fast(sinks[h] - (top - kBoost)));
  }
  for (int first = 0; first < splits; first += kAtOnce * kBatch) {
    if (first > 0) fetch(first);
#pragma unroll
    for (int i = 0; i < kNum * kBatch; ++i) {
      const int h = i / kBatch;
      const float by = __shfl_sync(kAll, weight[h], first + kAtOnce * (i % kBatch) + mine);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const float4 from = o[h][i % kBatch][v];
        sum[h][v].x += from.x * by, sum[h][v].y += from.y * by;
        sum[h][v].z += from.z * by, sum[h][v].w += from.w * by;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kNum * kVectors; ++i) {
    const int h = i / kVectors, v = i % kVectors;
    float4& x = sum[h][v];
    if constexpr (kAtOnce == 2) {
      x.x += __shfl_down_sync(kAll, x.x, 16), x.y += __shfl_down_sync(kAll, x.y, 16);
      x.z += __shfl_down_sync(kAll, x.z, 16), x.w += __shfl_down_sync(kAll, x.w, 16);
    }
    if (mine == 0)
      reinterpret_cast<uint2*>(att + h * kDim)[v * kLanes + lane] = {
          pack_bf16(x.x * inv[h], x.y * inv[h]), pack_bf16(x.z * inv[h], x.w * inv[h])};
  }
}

}  // namespace nibble::ops::gpu::one_token
