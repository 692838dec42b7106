// What the CUDA kernels of attention share in which the 8 warps of a block take a split of a
// token's keys, 16 at a time: how keys are split, and how warps' and splits' parts are put
// together.
#pragma once

#include <algorithm>
#include <cfloat>

#include "cuda/arrivals.cuh"
#include "cuda/launch.cuh"
#include "cuda/parameters.cuh"
#include "ops/attention/attention_decode.h"
#include "ops/attention/attention_one_token.cuh"
#include "ops/attention/attention_scratch.h"

namespace nibble::ops::gpu::split_keys {

using namespace one_token;  // NOLINT

inline constexpr int kWarps = 8;
static_assert(kWarps == kHeads);                // a warp merges a head
inline constexpr int kSplitTiles = 2 * kWarps;  // of a split up to 4,096 keys of 8 KV heads;
inline constexpr int kFewTiles = 48;            // half of that from 257 to 768 keys: less latency;
// beyond, it grows: up to 16,384 keys to a block an SM, which is what has room beside the kernel in
// front. Who starts behind that one comes late. Fewer heads are split further.
inline constexpr int kEarlyBlocks = 128, kEarlyTiles = 1024;
inline constexpr int kMaxSplits = AttentionScratch::kMaxSplits;
inline constexpr int kSlab = AttentionScratch::kSlab;  // rows of a launch, for the scratch's sake
inline constexpr int kPrefetchTiles = 7;               // of a warp of one token, into L2

struct Params : Arguments {
  const int32_t* positions = nullptr;
  PartsAt parts;  // of [tokens, columns, kMaxSplits, kHeads]
  uint32_t* counters =
      nullptr;  // [tokens, columns], or [tokens, columns, kHeads] of one item a block, zero
  // Rows of this launch: tokens first.., or (by_span) spans first.., those of one token.
  int32_t first = 0, num_rows = 0, by_span = 0;
  int32_t num_tokens = 0;
  int32_t columns = 0;  // KV heads, each as often as its group has parts
  HeadParts head_parts;
  int32_t early_splits = 0, few_tiles = 0;
  int32_t split_tiles = 0;  // of all splits but last ones; 0: by the number of keys alone
};

// How the tiles that a token sees are split: `longer` splits have a tile of each warp more.
struct Splits {
  int32_t count, tiles, longer;

  static __host__ __device__ constexpr Splits of(const Params& a, int32_t seen,
                                                 int32_t split_tiles) {
    if (split_tiles > 0) return {(seen + split_tiles - 1) / split_tiles, split_tiles, 0};
    if (seen <= a.early_splits * kSplitTiles) {
      const int32_t tiles =
          seen > kSplitTiles && seen <= a.few_tiles ? kSplitTiles / 2 : kSplitTiles;
      return {(seen + tiles - 1) / tiles, tiles, 0};
    }
    const int32_t count = seen <= kEarlyTiles ? a.early_splits : kMaxSplits;
    const int32_t tiles = seen / count / kWarps * kWarps;
    return {count, tiles, (seen - count * tiles + kWarps - 1) / kWarps};
  }
  __device__ __forceinline__ int32_t begin(int32_t split) const {
    return split * tiles + min(split, longer) * kWarps;
  }
};
// The most of a token that sees up to `tiles`.
inline int32_t most_splits(const Params& a, int32_t tiles) {
  return std::max(Splits::of(a, tiles, a.split_tiles).count,
                  Splits::of(a, std::min(tiles, a.few_tiles), a.split_tiles).count);
}

// What of a sequence a token sees, in tiles, and how that is split.
struct Range {
  Visible seen;
  int32_t first, end;  // tiles
  Splits splits;

  static __device__ __forceinline__ Range of(const Params& a, int32_t pos, int32_t split_tiles) {
    Range r;
    r.seen = {a.window > 0 ? max(0, pos - a.window + 1) : 0, pos};
    r.first = r.seen.first / kTile;
    r.end = pos / kTile + 1;
    r.splits = Splits::of(a, r.end - r.first, split_tiles);
    return r;
  }
};

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

// A split of a token and a part of a KV head's query heads, as one warp sees it: tiles first, first
// + kWarps, .. before end.
struct Item {
  int32_t row, t, kv_head, split;
  Range range;
  int32_t context;  // positions before it were written by earlier steps
  int32_t slot;
  int32_t first, end;
  int32_t page;  // lane l: of its tile l, 32 + l, ..

  // Those from `tile` on.
  __device__ __forceinline__ void find_pages(const Params& a, int32_t tile) {
    tile += kWarps * (threadIdx.x % 32);
    if (tile < end)
      page = a.page_table[int64_t{slot} * a.max_pages + (tile * kTile >> a.page_shift)];
  }
  __device__ __forceinline__ void find_tiles(const Params& a) {
    first = range.first + range.splits.begin(split) + threadIdx.x / 32;
    end = min(range.first + range.splits.begin(split + 1), range.end);
    page = 0;
    find_pages(a, first);
  }
  __device__ __forceinline__ Heads heads(const Params& a) const {
    if (a.head_parts.count == 1) return {kv_head * a.group, a.group};  // without a division
    return Heads::of(a, a.head_parts, row % a.columns);
  }
};

// Element 0 of the first key of the item's tile.
template <int kDim>
__device__ __forceinline__ int64_t address(const Item& item, const Params& a, int32_t tile) {
  const int64_t page = __shfl_sync(kAll, item.page, (tile - item.first) / kWarps % 32);
  return (((page * a.kv_heads + item.kv_head) << a.page_shift) +
          (tile * kTile & ((1 << a.page_shift) - 1))) *
         kDim;
}

// The lane's: of head lane / 4 of the item, or of the last one.
template <int kDim>
__device__ __forceinline__ const uint16_t* query_of(const Params& a, int32_t t, Heads heads) {
  const int head = heads.first + min(static_cast<int>(threadIdx.x) % 32 / 4, heads.count - 1);
  return a.q + (int64_t{t} * a.kv_heads * a.group + head) * kDim;
}

// All tiles of an item; `tile` holds the first. The next one's keys are on their way while this
// one's weights are made.
template <int kDim, bool kFp8>
__device__ __forceinline__ State<kDim> attend_item(const Params& a, Item& item,
                                                   Tile<kDim, kFp8>& tile,
                                                   const Query<kDim, kFp8>& q) {
  State<kDim> state;
  for (int32_t index = item.first; index < item.end; index += kWarps) {
    const int32_t next = index + kWarps;
    if ((next - item.first) % (32 * kWarps) == 0) item.find_pages(a, next);
    const int64_t at = address<kDim>(item, a, next);
    float s[4];
    score(s, tile, q, index, item.range.seen, a.scale);
    if (next < item.end) load_keys(tile, a.k, at);
    weigh(state, s);
    clear_unseen(tile, index, item.range.seen);
    add_values(state, tile, s);
    if (next < item.end) load_values(tile, a.v, at);
  }
  return state;
}

// Where an item's part goes.
struct Target {
  int32_t row, t, split, splits;
  Heads heads;

  static __device__ __forceinline__ Target of(const Item& item, Heads heads) {
    return {item.row, item.t, item.split, item.range.splits.count, heads};
  }
};
// What the warps of a block leave of an item.
template <int kDim>
struct Parts {
  alignas(16) float o[kWarps][kHeads][kDim + 8];
  float2 sums[kHeads][kWarps];  // largest score, sum
  Target to;                    // here it takes no registers while tiles do

  // By all threads; whoever reads it waits for thread 0.
  __device__ __forceinline__ void note(const Target& target) {
    if (threadIdx.x == 0) to = target;
  }
};
// An item whose part is written and counted; 0 splits: none, or it was the only one.
struct Counted {
  int32_t row, t, splits;
  bool is_last;
};
template <int kDim>
__device__ __forceinline__ void publish(Parts<kDim>& shared, const State<kDim>& state) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float sum = sum_of_keys(state.sum[h]);
    if (g == 0) shared.sums[2 * p + h][warp] = {state.top[h], sum};
#pragma unroll
    for (int c = 0; c < kDim / 64; ++c)
      store_panel(&shared.o[warp][2 * p + h][64 * c + 8 * g], state, c, h);
  }
}

// Of the head that a warp merges.
__device__ __forceinline__ float sink_of(const Params& a, Heads heads) {
  const int h = threadIdx.x / 32;
  return h < heads.count ? one_token::sink_of(a, heads.first + h) : -INFINITY;
}

// The last block of a token and KV head: att from the splits' parts, in their order, a warp a head.
template <int kDim>
__device__ __forceinline__ void merge_item(const Params& a, const Counted& item, Heads heads,
                                           float sink) {
  const int h = threadIdx.x / 32;
  if (h >= heads.count) return;
  const int64_t at = int64_t{item.row} * kMaxSplits * kHeads + h;
  const int64_t to = int64_t{item.t} * a.kv_heads * a.group + heads.first + h;
  const float sinks[] = {sink};
  merge_splits<kDim>(a.att + to * kDim, a.parts, at, item.splits, sinks, a.v_scale);
}
// Sums the warps of a block. The only split writes att, others leave their part.
template <int kDim>
__device__ __forceinline__ void finish_item(const Params& a, const Parts<kDim>& shared,
                                            const Target& to, float sink) {
  const int lane = threadIdx.x % 32, h = threadIdx.x / 32;
  if (h >= to.heads.count) return;
  const int32_t splits = to.splits;
  if (splits > 1) sink = -INFINITY;  // whoever merges them adds it
  float top = sink;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) top = fmaxf(top, shared.sums[h][w].x);
  float sum = 0;
  float2 o[kDim / 64] = {};
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const float2 part = shared.sums[h][w];
    const float by = exp2_fast(part.x - top);
    sum += part.y * by;
#pragma unroll
    for (int c = 0; c < kDim / 64; ++c) {
      const float2 values = reinterpret_cast<const float2*>(shared.o[w][h])[32 * c + lane];
      o[c].x += values.x * by, o[c].y += values.y * by;
    }
  }
  const float inv = a.v_scale / (sum + exp2_fast(sink - (top - kBoost)));
  const int64_t head = int64_t{to.t} * a.kv_heads * a.group + to.heads.first + h;
  const int64_t at = (int64_t{to.row} * kMaxSplits + to.split) * kHeads + h;
#pragma unroll
  for (int c = 0; c < kDim / 64; ++c) {
    if (splits == 1)
      reinterpret_cast<uint32_t*>(a.att + head * kDim)[32 * c + lane] =
          pack_bf16(o[c].x * inv, o[c].y * inv);
    else
      reinterpret_cast<float2*>(a.parts.o + at * kDim)[32 * c + lane] = o[c];
  }
  if (splits > 1 && lane == 0) a.parts.sums[at] = {top, sum};
}

// The same where a block has one item: the warp that is the last to leave its part of a head's
// merges that head.
template <int kDim>
__device__ __forceinline__ void finish_only_item(const Params& a, const Parts<kDim>& shared,
                                                 Target to, float sink) {
  finish_item(a, shared, to, sink);
  const int h = threadIdx.x / 32;
  if (to.splits == 1 || h >= to.heads.count) return;
  __syncwarp();
  bool is_last = false;
  if (threadIdx.x % 32 == 0)
    is_last = cuda::is_last_arrival(a.counters + to.row * kHeads + h, to.splits);
  if (__any_sync(kAll, is_last))
    merge_item<kDim>(a, {to.row, to.t, to.splits, true}, to.heads, sink);
}

// Of a split, where a token's tiles are to go into `count`: whole rounds of a block's warps.
inline int32_t tiles_of_split(int32_t tiles, int32_t count) {
  if (tiles <= kSplitTiles) return kSplitTiles;
  count = std::clamp(count, 1, kMaxSplits);
  return ((tiles + count - 1) / count + kWarps - 1) / kWarps * kWarps;
}

// For `rows` rows: of tokens, or (by_span) of spans.
inline Params split_params(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
                           const AttentionParams& params, const Step& s, bool by_span,
                           int32_t rows) {
  Params a{arguments(att, q, kv, params, s)};
  a.head_parts = HeadParts::of(a.group);
  a.columns = a.kv_heads * a.head_parts.count;
  a.early_splits = std::clamp(kEarlyBlocks / a.columns, kMaxSplits / 2, kMaxSplits);
  a.few_tiles = std::clamp(8 * kFewTiles / a.columns, kFewTiles, kMaxSplits * kSplitTiles / 2);
  const AttentionScratch scratch(Scratch(cx.scratch), rows, a.columns, kv.k.dim(3));
  a.positions = s.positions;
  a.parts = {scratch.parts, reinterpret_cast<float2*>(scratch.part_sums)};
  a.counters = cx.counters;
  a.by_span = by_span;
  a.num_tokens = s.num_tokens;
  return a;
}

// That a token sees at most.
inline int32_t most_tiles(const KvLayer& kv, const AttentionParams& params, const Step& s) {
  const int32_t longest = kv.max_pages * kv.page_size;
  const int32_t context = s.max_context > 0 ? std::min(s.max_context, longest) : longest;
  const int32_t keys = params.window > 0 ? std::min(params.window, context) : context;
  return (keys + (params.window > 0 ? 2 * kTile - 2 : kTile - 1)) / kTile;
}

}  // namespace nibble::ops::gpu::split_keys
