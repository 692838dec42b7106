// attention on a GPU for spans of one token (decode), and under --exact for every token.
//   q       [T, Q * D] bf16, in      att [T, Q * D] bf16, out
//   k, v    [pages, G, P, D] bf16 or E4M3, in, P a power of two, P % 16 == 0; page_table [slots,
//   max_pages] i32 sinks   [Q] bf16 or none, in     D = 64, Q / G <= 8
// Bytes: 4 D G a key that is seen, and 4 D Q a token. Floor at context 512 / 8,192 / 131,072 with 8
// KV heads: 1.0 / 16.8 / 268 MB: 0.23 / 3.7 / 60 us on an H200 at 4.5 TB/s, 4.5 / 72 / 1,150 on
// GB10. Idea: the up to 8 query heads of a KV head are the 8 columns of mma m16n8k16, 16 keys its
// rows (scores) or its depth (values): S^T = K Q^T, O^T = V^T P^T. The order of D inside a dot
// product, and that of the dims of O^T, are free, so K and V go from global memory straight into
// fragments with 16-byte loads, no shared memory; V's pairs of keys are made by PRMT, P's by a
// transpose of 8x8. A block is one split of one token and KV head; its warps take 16-key tiles in
// turn, all loaded before the wait for the kernel before, but for those that it writes. A split is
// a function of the number of keys alone, and splits are merged in their order by the last block of
// the token and head, so a token's bits do not depend on the batch.
#include <algorithm>
#include <bit>
#include <cfloat>

#include "cuda/bf16.cuh"
#include "cuda/fp8.cuh"
#include "cuda/launch.cuh"
#include "cuda/mma_bf16.cuh"
#include "ops/attention/attention_decode.h"
#include "ops/attention/attention_scratch.h"

namespace nibble::ops::gpu {
namespace {

using nibble::cuda::load16;
using nibble::cuda::load8;
using nibble::cuda::pack_bf16;

constexpr int kDim = AttentionScratch::kDim;
constexpr int kHeads = AttentionScratch::kMaxGroup;  // columns of the matrix product: query heads
                                                     // of a KV head, at most
constexpr int kTile = 16;                            // keys
constexpr int kWarps = 8;
static_assert(kWarps == kHeads);                          // a warp merges a head
constexpr int kSplitTiles = 8;                            // of a split, at least: one a warp
constexpr int kMaxSplits = AttentionScratch::kMaxSplits;  // of 128 keys up to 4,096, then they grow
constexpr int kSlab = AttentionScratch::kSlab;  // rows of a launch, for the scratch's sake
constexpr int kBlocksPerSm = 2;
constexpr float kBoost = 8;
constexpr float kLog2e = 1.4426950408889634f;
constexpr unsigned kAll = 0xffffffff;

struct Params {
  uint16_t* att;
  const uint16_t* q;
  const void* k;  // bf16 or E4M3
  const void* v;
  const int32_t* page_table;
  const int32_t* positions;
  const Span* spans;
  const uint16_t* sinks;
  float4* parts;       // [tokens, G, kMaxSplits, kHeads, kDim / 4]
  float2* part_sums;   // [tokens, G, kMaxSplits, kHeads]: largest score, sum of exponentials
  uint32_t* counters;  // [tokens, G], zero
  // Rows of this launch: tokens first.., or (by_span) spans first.., those of one token.
  int32_t first, num_rows, by_span;
  int32_t num_tokens, num_spans, max_pages, page_shift, kv_heads, group, window;
  float scale;  // of scores, in powers of two
};

// What of a sequence a token sees, in tiles, and how that is split.
struct Range {
  int32_t first, last;  // positions
  int32_t begin, end;   // tiles
  int32_t tiles_per_split, splits;
};

__device__ __forceinline__ Range range_of(int32_t pos, int32_t window) {
  Range r;
  r.first = window > 0 ? max(0, pos - window + 1) : 0;
  r.last = pos;
  r.begin = r.first / kTile;
  r.end = pos / kTile + 1;
  constexpr int kFull = kSplitTiles * kMaxSplits;
  r.tiles_per_split = kSplitTiles * ((r.end - r.begin + kFull - 1) / kFull);
  r.splits = (r.end - r.begin + r.tiles_per_split - 1) / r.tiles_per_split;
  return r;
}

// The span of row i of the grid, or of the token that it stands for: spans cover all in order.
__device__ __forceinline__ Span span_of(const Params& a, int32_t t) {
  if (a.by_span || a.num_spans == a.num_tokens) return a.spans[t];
  int32_t low = 0, high = a.num_spans - 1;
  while (low < high) {
    const int32_t mid = (low + high + 1) / 2;
    a.spans[mid].q_start <= t ? low = mid : high = mid - 1;
  }
  return a.spans[low];
}

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
__device__ __forceinline__ void load_keys(Tile<false>& tile, const Params& a, int64_t at) {
  const int lane = threadIdx.x % 32;
  const uint16_t* k = static_cast<const uint16_t*>(a.k) + at + (lane / 4 * kDim + lane % 4 * 8);
  tile.k[0] = load16(k), tile.k[1] = load16(k + kDim / 2);
  tile.k[2] = load16(k + 8 * kDim), tile.k[3] = load16(k + 8 * kDim + kDim / 2);
}
__device__ __forceinline__ void load_keys(Tile<true>& tile, const Params& a, int64_t at) {
  const int lane = threadIdx.x % 32;
  const uint8_t* k = static_cast<const uint8_t*>(a.k) + at + (lane / 4 * kDim + lane % 4 * 16);
  tile.k[0] = load16(k), tile.k[1] = load16(k + 8 * kDim);
}
__device__ __forceinline__ void load_values(Tile<false>& tile, const Params& a, int64_t at) {
  const int lane = threadIdx.x % 32;
  const uint16_t* v = static_cast<const uint16_t*>(a.v) + at + (lane % 4 * 2 * kDim + lane / 4 * 8);
  tile.v[0] = load16(v), tile.v[1] = load16(v + kDim);
  tile.v[2] = load16(v + 8 * kDim), tile.v[3] = load16(v + 9 * kDim);
}
__device__ __forceinline__ void load_values(Tile<true>& tile, const Params& a, int64_t at) {
  const int lane = threadIdx.x % 32;
  const uint8_t* v = static_cast<const uint8_t*>(a.v) + at + (lane % 4 * 2 * kDim + lane / 4 * 8);
  tile.v[0] = load8(v), tile.v[1] = load8(v + kDim);
  tile.v[2] = load8(v + 8 * kDim), tile.v[3] = load8(v + 9 * kDim);
}

// A split of a token and KV head, as one warp sees it: tiles first, first + kWarps, .. before end.
struct Item {
  int32_t row, t, kv_head, split;
  Range range;
  int32_t context;  // positions before it were written by earlier steps
  int32_t first, end;
  int32_t page;  // lane l: of its tile l
};

// Where the splits of the launch's rows lie in the list of items.
struct Rows {
  int32_t first_split[kSlab + 1];

  // By the whole block.
  __device__ __forceinline__ void count(const Params& a) {
    static_assert(kSlab % 32 == 0);
    const int lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
      int32_t sum = 0;
      for (int i = 0; i < a.num_rows; i += 32) {
        int32_t upto = i + lane < a.num_rows ? splits_of(a, i + lane) : 0;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
          const int32_t other = __shfl_up_sync(kAll, upto, step);
          if (lane >= step) upto += other;
        }
        first_split[1 + i + lane] = sum + upto;
        sum += __shfl_sync(kAll, upto, 31);
      }
      if (lane == 0) first_split[0] = 0;
    }
    __syncthreads();
  }

 private:
  static __device__ __forceinline__ int32_t splits_of(const Params& a, int32_t row) {
    const int32_t i = a.first + row;
    if (!a.by_span) return range_of(a.positions[i], a.window).splits;
    const Span span = a.spans[i];
    return span.q_len == 1 ? range_of(span.context, a.window).splits : 0;
  }
};

// Item i of the list; false past its end.
__device__ __forceinline__ bool item_at(Item& item, const Params& a, const Rows& rows, int32_t i) {
  const int32_t split = i / a.kv_heads;
  if (split >= rows.first_split[a.num_rows]) return false;
  int32_t low = 0, high = a.num_rows - 1;
  while (low < high) {
    const int32_t mid = (low + high + 1) / 2;
    rows.first_split[mid] <= split ? low = mid : high = mid - 1;
  }
  const Span span = span_of(a, a.first + low);
  item.kv_head = i - split * a.kv_heads;
  item.row = low * a.kv_heads + item.kv_head;
  item.t = a.by_span ? span.q_start : a.first + low;
  item.split = split - rows.first_split[low];
  item.range = range_of(a.positions[item.t], a.window);
  item.context = span.context;
  const int32_t begin = item.range.begin + item.split * item.range.tiles_per_split;
  item.first = begin + threadIdx.x / 32;
  item.end = min(begin + item.range.tiles_per_split, item.range.end);
  const int32_t tile = item.first + kWarps * (threadIdx.x % 32);
  item.page = 0;
  if (tile < item.end)
    item.page = a.page_table[int64_t{span.slot} * a.max_pages + (tile * kTile >> a.page_shift)];
  return true;
}

// Element 0 of the first key of the item's tile.
__device__ __forceinline__ int64_t address(const Item& item, const Params& a, int32_t tile) {
  const int64_t page = __shfl_sync(kAll, item.page, (tile - item.first) / kWarps % 32);
  return (((page * a.kv_heads + item.kv_head) << a.page_shift) +
          (tile * kTile & ((1 << a.page_shift) - 1))) *
         kDim;
}

// As the keys' fragments want them: bf16, dims 8p.. and 32 + 8p..; or f16, dims 16p...
template <bool kFp8>
__device__ __forceinline__ void load_queries(uint4 (&q)[2], const Params& a, const Item& item) {
  const int lane = threadIdx.x % 32, p = lane % 4;
  const int head = item.kv_head * a.group + min(lane / 4, a.group - 1);
  const uint16_t* from = a.q + (int64_t{item.t} * a.kv_heads * a.group + head) * kDim;
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

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
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
                                      int32_t index, const Range& range, float scale) {
  float d[2][4] = {};
  multiply(d, tile, q);
  const int32_t key = index * kTile + threadIdx.x % 32 / 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32_t pos = key + 8 * (i / 2);
    s[i] = pos >= range.first && pos <= range.last ? (d[0][i] + d[1][i]) * scale : -INFINITY;
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
__device__ __forceinline__ void clear_unseen(Tile<kFp8>& tile, int32_t index, const Range& range) {
  const int32_t first = index * kTile;
  if (first >= range.first && first + kTile - 1 <= range.last) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32_t pos = first + 2 * (threadIdx.x % 4) + i % 2 + 8 * (i / 2);
    if (pos < range.first || pos > range.last) tile.v[i] = {};
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

// All tiles of an item; `tile` holds the first. The next one's keys are on their way while this
// one's weights are made.
template <bool kFp8>
__device__ __forceinline__ State attend_item(const Params& a, const Item& item, Tile<kFp8>& tile,
                                             const uint4 (&q)[2]) {
  State state = {{-FLT_MAX, -FLT_MAX}, {}, {}};
  for (int32_t index = item.first; index < item.end; index += kWarps) {
    const int32_t next = index + kWarps;
    const int64_t at = address(item, a, next);
    float s[4];
    score(s, tile, q, index, item.range, a.scale);
    if (next < item.end) load_keys(tile, a, at);
    weigh(state, s);
    clear_unseen(tile, index, item.range);
    add_values(state, tile, s);
    if (next < item.end) load_values(tile, a, at);
  }
  return state;
}

struct Shared {
  Rows rows;
  alignas(16) float o[kWarps][kHeads][kDim + 8];
  float2 sums[kHeads][kWarps];  // largest score, sum
  bool is_last;
};

__device__ __forceinline__ void publish(Shared& shared, const State& state) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = state.sum[h];
#pragma unroll
    for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(kAll, sum, step);
    if (g == 0) shared.sums[2 * p + h][warp] = {state.top[h], sum};
    float4* o = reinterpret_cast<float4*>(&shared.o[warp][2 * p + h][8 * g]);
    o[0] = {state.o[0][h], state.o[0][2 + h], state.o[1][h], state.o[1][2 + h]};
    o[1] = {state.o[2][h], state.o[2][2 + h], state.o[3][h], state.o[3][2 + h]};
  }
}

__device__ __forceinline__ float sink_of(const Params& a, int32_t head) {
  return a.sinks == nullptr ? -INFINITY : cuda::bf16_value(a.sinks[head]) * kLog2e;
}

// An item whose part is written and counted; 0 splits: none, or it was the only one.
struct Counted {
  int32_t row, t, kv_head, splits;
};

// The last block of a token and KV head: att from the splits' parts, in their order. Half a warp
// takes every other split.
__device__ __forceinline__ void merge_splits(const Params& a, const Counted& item) {
  const int32_t splits = item.splits;
  const int lane = threadIdx.x % 32, half = lane / 16, h = threadIdx.x / 32;
  if (h >= a.group) return;
  const int64_t at = int64_t{item.row} * kMaxSplits * kHeads + h;
  const int32_t head = item.kv_head * a.group + h;
  constexpr int kBatch = 4;  // loads in flight a lane
  float4 o[kBatch], sum = {0, 0, 0, 0};
  const auto fetch = [&](int first) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int split = first + 2 * i + half;
      o[i] = split < splits ? __ldcg(a.parts + (at + split * kHeads) * (kDim / 4) + lane % 16)
                            : float4{0, 0, 0, 0};
    }
  };
  fetch(0);
  const float2 part =
      lane < splits ? __ldcg(a.part_sums + at + lane * kHeads) : float2{-INFINITY, 0};
  const float sink = sink_of(a, head);
  float top = fmaxf(part.x, sink);
#pragma unroll
  for (int step = 1; step < 32; step *= 2) top = fmaxf(top, __shfl_xor_sync(kAll, top, step));
  const float weight = exp2_fast(part.x - top);
  float all = part.y * weight;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) all += __shfl_xor_sync(kAll, all, step);
  for (int first = 0; first < splits; first += 2 * kBatch) {
    if (first > 0) fetch(first);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const float by = __shfl_sync(kAll, weight, first + 2 * i + half);
      sum.x += o[i].x * by, sum.y += o[i].y * by, sum.z += o[i].z * by, sum.w += o[i].w * by;
    }
  }
  const float inv = 1 / (all + exp2_fast(sink - (top - kBoost)));
  sum.x += __shfl_down_sync(kAll, sum.x, 16), sum.y += __shfl_down_sync(kAll, sum.y, 16);
  sum.z += __shfl_down_sync(kAll, sum.z, 16), sum.w += __shfl_down_sync(kAll, sum.w, 16);
  if (half == 0)
    reinterpret_cast<uint2*>(a.att +
                             (int64_t{item.t} * a.kv_heads * a.group + head) * kDim)[lane] = {
        pack_bf16(sum.x * inv, sum.y * inv), pack_bf16(sum.z * inv, sum.w * inv)};
}

// Sums the warps of a block. The only split writes att, others leave their part.
__device__ __forceinline__ void finish_item(const Params& a, Shared& shared, const Item& item) {
  const int lane = threadIdx.x % 32, h = threadIdx.x / 32;
  if (h >= a.group) return;
  const int32_t splits = item.range.splits, head = item.kv_head * a.group + h;
  const float sink = splits == 1 ? sink_of(a, head) : -INFINITY;
  float top = sink;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) top = fmaxf(top, shared.sums[h][w].x);
  float sum = 0;
  float2 o = {0, 0};
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const float2 part = shared.sums[h][w];
    const float by = exp2_fast(part.x - top);
    const float2 values = reinterpret_cast<const float2*>(shared.o[w][h])[lane];
    sum += part.y * by, o.x += values.x * by, o.y += values.y * by;
  }
  if (splits == 1) {
    const float inv = 1 / (sum + exp2_fast(sink - (top - kBoost)));
    reinterpret_cast<uint32_t*>(a.att + (int64_t{item.t} * a.kv_heads * a.group + head) *
                                            kDim)[lane] = pack_bf16(o.x * inv, o.y * inv);
  } else {
    const int64_t at = (int64_t{item.row} * kMaxSplits + item.split) * kHeads + h;
    reinterpret_cast<float2*>(a.parts + at * (kDim / 4))[lane] = o;
    if (lane == 0) a.part_sums[at] = {top, sum};
  }
}

// Blocks take items in turn. An item's first tiles are on their way while the one before is merged;
// whether a block was the last of a token and head it hears while it attends to its next item.
template <bool kFp8>
__global__ void __launch_bounds__(kWarps * 32, kBlocksPerSm)
    attend_items(const __grid_constant__ Params a) {
  __shared__ Shared shared;
  shared.rows.count(a);
  Item item;
  int32_t i = blockIdx.x;
  if (!item_at(item, a, shared.rows, i)) return cuda::griddep_wait();
  Tile<kFp8> tile;
  uint4 q[2];
  int64_t at = address(item, a, item.first);
  // Tiles that this step's tokens write come after the wait.
  const bool is_early = (item.first + 1) * kTile <= item.context;
  if (item.first < item.end && is_early) load_keys(tile, a, at), load_values(tile, a, at);
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  load_queries<kFp8>(q, a, item);
  if (item.first < item.end && !is_early) load_keys(tile, a, at), load_values(tile, a, at);
  Counted counted{};
  for (bool more = true; more;) {
    Item next;
    more = item_at(next, a, shared.rows, i += gridDim.x);
    const State state = attend_item(a, item, tile, q);
    if (more) {
      load_queries<kFp8>(q, a, next);
      at = address(next, a, next.first);
      if (next.first < next.end) load_keys(tile, a, at), load_values(tile, a, at);
    }
    publish(shared, state);
    __syncthreads();
    if (counted.splits > 0 && shared.is_last) merge_splits(a, counted);
    finish_item(a, shared, item);
    __syncthreads();
    counted = {item.row, item.t, item.kv_head, item.range.splits > 1 ? item.range.splits : 0};
    if (counted.splits > 0 && threadIdx.x == 0) {
      __threadfence();
      const uint32_t wrap = counted.splits - 1;  // the last one leaves 0
      shared.is_last = atomicInc(a.counters + counted.row, wrap) == wrap;
      __threadfence();
    }
    item = next;
  }
  __syncthreads();
  if (counted.splits > 0 && shared.is_last) merge_splits(a, counted);
}

}  // namespace

void attend_rows(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
                 const AttentionParams& params, const Step& s, bool by_span) {
  const auto kv_heads = static_cast<int32_t>(kv.k.dim(1));
  const int32_t rows = by_span ? s.num_spans : s.num_tokens, slab = std::min(rows, kSlab);
  const AttentionScratch scratch(Scratch(cx.scratch), slab, kv_heads);
  CHECK(kv.page_size % kTile == 0 && std::has_single_bit(static_cast<uint32_t>(kv.page_size)));
  CHECK(int64_t{slab} * kv_heads <= Ctx::kNumCounters);
  // A lane keeps one page number of a warp's share of a split.
  if (kv.max_pages * int64_t{kv.page_size} > int64_t{kMaxSplits} * kWarps * 32 * kTile)
    throw Error(ErrorKind::kUnsupported, "attention on the GPU serves contexts up to 131,072");
  Params a{.att = att.as<uint16_t>(),
           .q = q.as<uint16_t>(),
           .k = kv.k.data,
           .v = kv.v.data,
           .page_table = kv.page_table,
           .positions = s.positions,
           .spans = s.spans,
           .sinks = params.sinks,
           .parts = reinterpret_cast<float4*>(scratch.parts),
           .part_sums = reinterpret_cast<float2*>(scratch.part_sums),
           .counters = cx.counters,
           .by_span = by_span,
           .num_tokens = s.num_tokens,
           .num_spans = s.num_spans,
           .max_pages = kv.max_pages,
           .page_shift = std::countr_zero(static_cast<uint32_t>(kv.page_size)),
           .kv_heads = kv_heads,
           .group = static_cast<int32_t>(q.dim(1) / kDim / kv_heads),
           .window = params.window,
           .scale = params.scale * kLog2e};
  const bool fp8 = kv.k.dtype == DType::kF8E4M3;
  CHECK(fp8 || kv.k.dtype == DType::kBF16);
  const auto kernel = fp8 ? attend_items<true> : attend_items<false>;
  const int32_t longest = kv.max_pages * kv.page_size;
  const int32_t context = s.max_context > 0 ? std::min(s.max_context, longest) : longest;
  const int32_t keys = params.window > 0 ? std::min(params.window + kTile, context) : context;
  const int32_t splits = std::clamp(keys / kTile / kSplitTiles + 1, 1, kMaxSplits);
  const int32_t resident = kBlocksPerSm * cx.kernels.gpu.num_sms;
  for (; a.first < rows; a.first += slab) {
    a.num_rows = std::min(slab, rows - a.first);
    const int64_t items = int64_t{a.num_rows} * kv_heads * splits;
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(items, resident));
    cuda::launch(cx.stream, kernel, {.grid = dim3(blocks), .block = dim3(kWarps * 32)}, a);
  }
}

void attend_tokens(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
                   const AttentionParams& params, const Step& s) {
  attend_rows(cx, att, q, kv, params, s, /*by_span=*/false);
}

}  // namespace nibble::ops::gpu
