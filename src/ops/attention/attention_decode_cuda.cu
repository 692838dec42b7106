// attention on a GPU for spans of one token (decode), and under --exact for every token.
//   q       [T, Q * D] bf16, in      att [T, Q * D] bf16, out
//   k, v    [pages, G, P, D] bf16 or E4M3, in, P a power of two, P % 16 == 0
//   page_table [slots, max_pages] i32, in      sinks [Q] bf16 or none, in
// Needs D = 64, Q / G <= 8, contexts up to 131,072.
// Bytes: 4 D G a key that is seen (E4M3: half), and 4 D Q a token. Floor at 512 / 8,192 / 131,072
// keys of 8 KV heads: 1.0 / 16.8 / 268 MB: 0.23 / 3.7 / 60 us on an H200 at 4.5 TB/s, 4.5 / 72 /
// 1,150 us on a GB10. Idea: fragments straight from the pages (attention_one_token.cuh), no shared
// memory for them. A block takes splits of tokens and KV heads in turn, its warps 16-key tiles; the
// first are loaded before the wait for the kernel before, but for those that it writes. A split is
// a function of the number of keys alone, and splits are merged in their order by the last block of
// the token and head, so a token's bits do not depend on the batch. Reached on one H200, chained in
// graphs, 2026-11-21: T = 1 at 512 / 8,192 / 131,072 keys 3.7 / 8.9 / 67 us, windows of 128 2.3 us.
// Lost: clusters, 16 warps, a grid of all splits, more tiles before the wait:
// docs/lab/attention.md.
#include <algorithm>
#include <cfloat>

#include "cuda/arrivals.cuh"
#include "cuda/launch.cuh"
#include "cuda/parameters.cuh"
#include "ops/attention/attention_decode.h"
#include "ops/attention/attention_one_token.cuh"
#include "ops/attention/attention_scratch.h"

namespace nibble::ops::gpu {
namespace {

using namespace one_token;  // NOLINT

static_assert(kDim == AttentionScratch::kDim);
constexpr int kHeads = AttentionScratch::kMaxGroup;  // columns of the matrix product: query heads
                                                     // of a KV head, at most
constexpr int kWarps = 8;
static_assert(kWarps == kHeads);         // a warp merges a head
constexpr int kSplitTiles = 2 * kWarps;  // of a split up to 4,096 keys;
constexpr int kFewTiles = 48;            // half of that from 257 to 768 keys: less latency;
// beyond, it grows: up to 16,384 keys to a block an SM, which is what has room beside the kernel in
// front. Who starts behind that one comes late.
constexpr int kEarlySplits = 16, kEarlyTiles = 1024;
constexpr int kMaxSplits = AttentionScratch::kMaxSplits;
constexpr int kSlab = AttentionScratch::kSlab;  // rows of a launch, for the scratch's sake
constexpr int kBlocksPerSm = 2;
constexpr int kPrefetchTiles = 7;  // of a warp of one token, into L2

struct Params : Arguments {
  const int32_t* positions = nullptr;
  float4* parts = nullptr;       // [tokens, G, kMaxSplits, kHeads, kDim / 4]
  float2* part_sums = nullptr;   // [tokens, G, kMaxSplits, kHeads]: largest score, sum of weights
  uint32_t* counters = nullptr;  // [tokens, G], or [G, kHeads] for one token, zero
  // Rows of this launch: tokens first.., or (by_span) spans first.., those of one token.
  int32_t first = 0, num_rows = 0, by_span = 0;
  int32_t num_tokens = 0;
};

// How the tiles that a token sees are split: `longer` splits have a tile of each warp more.
struct Splits {
  int32_t count, tiles, longer;

  static __host__ __device__ constexpr Splits of(int32_t seen) {
    if (seen <= kEarlySplits * kSplitTiles) {
      const int32_t tiles = seen > kSplitTiles && seen <= kFewTiles ? kSplitTiles / 2 : kSplitTiles;
      return {(seen + tiles - 1) / tiles, tiles, 0};
    }
    const int32_t count = seen <= kEarlyTiles ? kEarlySplits : kMaxSplits;
    const int32_t tiles = seen / count / kWarps * kWarps;
    return {count, tiles, (seen - count * tiles + kWarps - 1) / kWarps};
  }
  __device__ __forceinline__ int32_t begin(int32_t split) const {
    return split * tiles + min(split, longer) * kWarps;
  }
};
// The most of a token that sees up to `tiles`.
int32_t most_splits(int32_t tiles) {
  return std::max(Splits::of(tiles).count, Splits::of(std::min(tiles, kFewTiles)).count);
}

// What of a sequence a token sees, in tiles, and how that is split.
struct Range {
  Visible seen;
  int32_t first, end;  // tiles
  Splits splits;

  static __device__ __forceinline__ Range of(int32_t pos, int32_t window) {
    Range r;
    r.seen = {window > 0 ? max(0, pos - window + 1) : 0, pos};
    r.first = r.seen.first / kTile;
    r.end = pos / kTile + 1;
    r.splits = Splits::of(r.end - r.first);
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

// A split of a token and KV head, as one warp sees it: tiles first, first + kWarps, .. before end.
struct Item {
  int32_t row, t, kv_head, split;
  Range range;
  int32_t context;  // positions before it were written by earlier steps
  int32_t first, end;
  int32_t page;  // lane l: of its tile l
};

// The launch's rows, and where their splits lie in the list of items.
struct Rows {
  struct Row {
    int32_t t, pos, context, slot;
  };
  Row row[kSlab];
  int32_t first_split[kSlab + 1];

  // By the whole block.
  __device__ __forceinline__ void read(const Params& a) {
    static_assert(kSlab % 32 == 0);
    const int lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
      int32_t sum = 0;
      for (int i = lane; i - lane < a.num_rows; i += 32) {
        int32_t upto = 0;
        if (i < a.num_rows) {
          const int32_t at = a.first + i;
          const Span span = span_of(a, at);
          row[i] = a.by_span ? Row{span.q_start, span.context, span.context, span.slot}
                             : Row{at, a.positions[at], span.context, span.slot};
          if (!a.by_span || span.q_len == 1) upto = Range::of(row[i].pos, a.window).splits.count;
        }
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
          const int32_t other = __shfl_up_sync(kAll, upto, step);
          if (lane >= step) upto += other;
        }
        first_split[1 + i] = sum + upto;
        sum += __shfl_sync(kAll, upto, 31);
      }
      if (lane == 0) first_split[0] = 0;
    }
    __syncthreads();
  }
};

// The warp's share of a split, and its pages.
__device__ __forceinline__ void find_tiles(Item& item, const Params& a, int32_t slot) {
  const Range& range = item.range;
  item.first = range.first + range.splits.begin(item.split) + threadIdx.x / 32;
  item.end = min(range.first + range.splits.begin(item.split + 1), range.end);
  const int32_t tile = item.first + kWarps * (threadIdx.x % 32);
  item.page = 0;
  if (tile < item.end)
    item.page = a.page_table[int64_t{slot} * a.max_pages + (tile * kTile >> a.page_shift)];
}

// Item i of the list; false past its end.
__device__ __forceinline__ bool item_at(Item& item, const Params& a, const Rows& rows, int32_t i) {
  const int32_t split = i / a.kv_heads;
  if (split >= rows.first_split[a.num_rows]) return false;
  int32_t low = 0, high = a.num_rows - 1;
  while (low < high) {
    const int32_t mid = (low + high + 1) / 2;
    rows.first_split[mid] <= split ? low = mid : high = mid - 1;
  }
  const Rows::Row row = rows.row[low];
  item.kv_head = i - split * a.kv_heads;
  item.row = low * a.kv_heads + item.kv_head;
  item.t = row.t;
  item.split = split - rows.first_split[low];
  item.range = Range::of(row.pos, a.window);
  item.context = row.context;
  find_tiles(item, a, row.slot);
  return true;
}

// Element 0 of the first key of the item's tile.
__device__ __forceinline__ int64_t address(const Item& item, const Params& a, int32_t tile) {
  const int64_t page = __shfl_sync(kAll, item.page, (tile - item.first) / kWarps % 32);
  return (((page * a.kv_heads + item.kv_head) << a.page_shift) +
          (tile * kTile & ((1 << a.page_shift) - 1))) *
         kDim;
}

// The lane's: of head lane / 4 of the group, or of the last one.
__device__ __forceinline__ const uint16_t* query_of(const Params& a, const Item& item) {
  const int head =
      item.kv_head * a.group + min(static_cast<int>(threadIdx.x) % 32 / 4, a.group - 1);
  return a.q + (int64_t{item.t} * a.kv_heads * a.group + head) * kDim;
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
    score(s, tile, q, index, item.range.seen, a.scale);
    if (next < item.end) load_keys(tile, a.k, at);
    weigh(state, s);
    clear_unseen(tile, index, item.range.seen);
    add_values(state, tile, s);
    if (next < item.end) load_values(tile, a.v, at);
  }
  return state;
}

// What the warps of a block leave of an item.
struct Parts {
  alignas(16) float o[kWarps][kHeads][kDim + 8];
  float2 sums[kHeads][kWarps];  // largest score, sum
  bool is_last;
};
struct Shared : Parts {
  Rows rows;
};

__device__ __forceinline__ void publish(Parts& shared, const State& state) {
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

// Of the head that a warp merges.
__device__ __forceinline__ float sink_of(const Params& a, int32_t kv_head) {
  const int h = threadIdx.x / 32;
  if (a.sinks == nullptr || h >= a.group) return -INFINITY;
  return cuda::bf16_value(a.sinks[kv_head * a.group + h]) * kLog2e;
}

// An item whose part is written and counted; 0 splits: none, or it was the only one.
struct Counted {
  int32_t row, t, kv_head, splits;
};

// The last block of a token and KV head: att from the splits' parts, in their order. Half a warp
// takes every other split.
__device__ __forceinline__ void merge_splits(const Params& a, const Counted& item, float sink) {
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
__device__ __forceinline__ void finish_item(const Params& a, Parts& shared, const Item& item,
                                            float sink) {
  const int lane = threadIdx.x % 32, h = threadIdx.x / 32;
  if (h >= a.group) return;
  const int32_t splits = item.range.splits.count, head = item.kv_head * a.group + h;
  if (splits > 1) sink = -INFINITY;  // whoever merges them adds it
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
  cuda::griddep_launch_dependents();
  shared.rows.read(a);
  Item item;
  int32_t i = blockIdx.x;
  if (!item_at(item, a, shared.rows, i)) return cuda::griddep_wait();
  Tile<kFp8> tile;
  uint4 q[2];
  int64_t at = address(item, a, item.first);
  // Tiles that this step's tokens write come after the wait.
  const bool is_early = (item.first + 1) * kTile <= item.context;
  if (item.first < item.end && is_early) load_keys(tile, a.k, at), load_values(tile, a.v, at);
  cuda::griddep_wait();
  load_query<kFp8>(q, query_of(a, item));
  if (item.first < item.end && !is_early) load_keys(tile, a.k, at), load_values(tile, a.v, at);
  Counted counted{};
  for (bool more = true; more;) {
    Item next;
    more = item_at(next, a, shared.rows, i += gridDim.x);
    const State state = attend_item(a, item, tile, q);
    if (more) {
      load_query<kFp8>(q, query_of(a, next));
      at = address(next, a, next.first);
      if (next.first < next.end) load_keys(tile, a.k, at), load_values(tile, a.v, at);
    }
    publish(shared, state);
    __syncthreads();
    if (counted.splits > 0 && shared.is_last) merge_splits(a, counted, sink_of(a, counted.kv_head));
    finish_item(a, shared, item, sink_of(a, item.kv_head));
    __syncthreads();
    counted = {item.row, item.t, item.kv_head,
               item.range.splits.count > 1 ? item.range.splits.count : 0};
    if (counted.splits > 0 && threadIdx.x == 0)
      shared.is_last = cuda::is_last_arrival(a.counters + counted.row, counted.splits);
    item = next;
  }
  __syncthreads();
  if (counted.splits > 0 && shared.is_last) merge_splits(a, counted, sink_of(a, counted.kv_head));
}

// The same for one token, a block an item: little code, for a step of one token must bring it from
// L2 in every layer. Tiles that a warp cannot hold yet come into L2 before the wait.
template <bool kFp8>
__global__ void __launch_bounds__(kWarps * 32, kBlocksPerSm)
    attend_one(const __grid_constant__ Params a) {
  __shared__ Parts shared;
  cuda::griddep_launch_dependents();
  const Span span = a.spans[0];
  Item item;
  item.row = item.kv_head = blockIdx.x % a.kv_heads;
  item.split = blockIdx.x / a.kv_heads;
  item.t = 0;
  item.range = Range::of(a.by_span ? span.context : a.positions[0], a.window);
  item.context = span.context;
  if (item.split >= item.range.splits.count) return cuda::griddep_wait();
  find_tiles(item, a, span.slot);
  const bool has_tile = item.first < item.end;
  const bool is_early = (item.first + 1) * kTile <= item.context;
  Tile<kFp8> tile;
  uint4 q[2];
  const int64_t at = address(item, a, item.first);
  if (has_tile && is_early) load_keys(tile, a.k, at), load_values(tile, a.v, at);
  if (has_tile && !is_early) prefetch_tile<kFp8>(a.k, a.v, at);
#pragma unroll 1
  for (int i = 1; i <= kPrefetchTiles; ++i) {
    const int32_t tile = item.first + i * kWarps;
    if (tile >= item.end) break;
    prefetch_tile<kFp8>(a.k, a.v, address(item, a, tile));
  }
  const float sink = sink_of(a, item.kv_head);
  cuda::touch_parameters(a);
  cuda::griddep_wait();
  load_query<kFp8>(q, query_of(a, item));
  if (has_tile && !is_early) load_keys(tile, a.k, at), load_values(tile, a.v, at);
  publish(shared, attend_item(a, item, tile, q));
  __syncthreads();
  finish_item(a, shared, item, sink);
  // A warp has written its head's part, and merges it if it is the last to do so.
  const int32_t splits = item.range.splits.count, h = threadIdx.x / 32;
  if (splits == 1 || h >= a.group) return;
  __syncwarp();
  bool is_last = false;
  if (threadIdx.x % 32 == 0)
    is_last = cuda::is_last_arrival(a.counters + item.row * kHeads + h, splits);
  if (__any_sync(kAll, is_last)) merge_splits(a, {item.row, 0, item.kv_head, splits}, sink);
}

}  // namespace

void attend_rows(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
                 const AttentionParams& params, const Step& s, bool by_span) {
  if (by_span && is_short(params, kv, s, cx.kernels.gpu.num_sms))
    return attend_short(cx, att, q, kv, params, s);
  const auto kv_heads = static_cast<int32_t>(kv.k.dim(1));
  const int32_t rows = by_span ? s.num_spans : s.num_tokens, slab = std::min(rows, kSlab);
  const AttentionScratch scratch(Scratch(cx.scratch), slab, kv_heads);
  CHECK(int64_t{slab} * kv_heads <= Ctx::kNumCounters);
  // A lane keeps one page number of a warp's share of a split.
  if (kv.max_pages * int64_t{kv.page_size} > int64_t{kMaxSplits} * kWarps * 32 * kTile)
    throw Error(ErrorKind::kUnsupported, "attention on the GPU serves contexts up to 131,072");
  Params a{arguments(att, q, kv, params, s)};
  a.positions = s.positions;
  a.parts = reinterpret_cast<float4*>(scratch.parts);
  a.part_sums = reinterpret_cast<float2*>(scratch.part_sums);
  a.counters = cx.counters;
  a.by_span = by_span;
  a.num_tokens = s.num_tokens;
  const bool fp8 = kv.k.dtype == DType::kF8E4M3;
  const bool one = s.num_tokens == 1;
  const auto kernel = one ? (fp8 ? attend_one<true> : attend_one<false>)
                          : (fp8 ? attend_items<true> : attend_items<false>);
  const int32_t longest = kv.max_pages * kv.page_size;
  const int32_t context = s.max_context > 0 ? std::min(s.max_context, longest) : longest;
  const int32_t keys = params.window > 0 ? std::min(params.window, context) : context;
  const int32_t splits =
      most_splits((keys + (params.window > 0 ? 2 * kTile - 2 : kTile - 1)) / kTile);
  const int32_t most = one ? kv_heads * kMaxSplits : kBlocksPerSm * cx.kernels.gpu.num_sms;
  for (; a.first < rows; a.first += slab) {
    a.num_rows = std::min(slab, rows - a.first);
    const int64_t items = int64_t{a.num_rows} * kv_heads * splits;
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(items, most));
    cuda::launch(cx.stream, kernel,
                 {.grid = dim3(blocks), .block = dim3(kWarps * 32), .reads_inputs = true}, a);
  }
}

void attend_tokens(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
                   const AttentionParams& params, const Step& s) {
  attend_rows(cx, att, q, kv, params, s, /*by_span=*/false);
}

}  // namespace nibble::ops::gpu
