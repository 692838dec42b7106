// attention on a GPU for spans of one token (decode), and under --exact for every token.
//   q       [T, Q * D] bf16, in      att [T, Q * D] bf16, out
//   k, v    [pages, G, P, D] bf16 or E4M3, in, P a power of two, P % 16 == 0
//   page_table [slots, max_pages] i32, in      sinks [Q] bf16 or none, in
// Needs D = 64, 128 or 256, Q / G <= 16.
// Bytes: 4 D G a key that is seen (E4M3: half), and 4 D Q a token. Floor at 512 / 8,192 / 131,072
// keys of 8 KV heads: 1.0 / 16.8 / 268 MB: 0.23 / 3.7 / 60 us on an H200 at 4.5 TB/s, 4.5 / 72 /
// 1,150 us on a GB10. Idea: fragments straight from the pages (attention_one_token.cuh), no shared
// memory for them. A block takes splits of tokens and KV heads in turn, its warps 16-key tiles; the
// first are loaded before the wait for the kernel before, but for those that it writes. A split is
// a function of the number of keys alone, and splits are merged in their order by the last block of
// the token and head, so a token's bits do not depend on the batch; but for steps of several tokens
// without --exact, where a split is what fills the GPU. Reached on one H200, chained in
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

constexpr int kWarps = 8;
static_assert(kWarps == kHeads);         // a warp merges a head
constexpr int kSplitTiles = 2 * kWarps;  // of a split up to 4,096 keys of 8 KV heads;
constexpr int kFewTiles = 48;            // half of that from 257 to 768 keys: less latency;
// beyond, it grows: up to 16,384 keys to a block an SM, which is what has room beside the kernel in
// front. Who starts behind that one comes late. Fewer heads are split further.
constexpr int kEarlyBlocks = 128, kEarlyTiles = 1024;
constexpr int kMaxSplits = AttentionScratch::kMaxSplits;
constexpr int kSlab = AttentionScratch::kSlab;  // rows of a launch, for the scratch's sake
constexpr int kPrefetchTiles = 7;               // of a warp of one token, into L2
template <int kDim>
constexpr int kBlocksPerSm = kDim == 64 ? 2 : 1;

struct Params : Arguments {
  const int32_t* positions = nullptr;
  PartsAt parts;                 // of [tokens, columns, kMaxSplits, kHeads]
  uint32_t* counters = nullptr;  // [tokens, columns], or [columns, kHeads] for one token, zero
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
int32_t most_splits(const Params& a, int32_t tiles) {
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
          if (!a.by_span || span.q_len == 1)
            upto = Range::of(a, row[i].pos, a.split_tiles).splits.count;
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

// Item i of the list; false past its end.
__device__ __forceinline__ bool item_at(Item& item, const Params& a, const Rows& rows, int32_t i) {
  const int32_t split = i / a.columns;
  if (split >= rows.first_split[a.num_rows]) return false;
  int32_t low = 0, high = a.num_rows - 1;
  while (low < high) {
    const int32_t mid = (low + high + 1) / 2;
    rows.first_split[mid] <= split ? low = mid : high = mid - 1;
  }
  const Rows::Row row = rows.row[low];
  const int32_t column = i - split * a.columns;
  item.kv_head = a.head_parts.kv_head(column);
  item.row = low * a.columns + column;
  item.t = row.t;
  item.split = split - rows.first_split[low];
  item.range = Range::of(a, row.pos, a.split_tiles);
  item.context = row.context;
  item.slot = row.slot;
  item.find_tiles(a);
  return true;
}

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
struct Shared : Parts<kDim> {
  Rows rows;
  Counted counted;
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
// The same of what attend_items has counted, if this block was the last.
template <int kDim>
__device__ __forceinline__ void merge_counted(const Params& a, const Counted& item) {
  if (item.splits == 0 || !item.is_last) return;
  const Heads heads = Heads::of(a, a.head_parts, item.row % a.columns);
  merge_item<kDim>(a, item, heads, sink_of(a, heads));
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

// Blocks take items in turn. An item's first tiles are on their way while the one before is merged;
// whether a block was the last of a token and head it hears while it attends to its next item.
template <int kDim, bool kFp8>
__global__ void __launch_bounds__(kWarps * 32, kBlocksPerSm<kDim>)
    attend_items(const __grid_constant__ Params a) {
  extern __shared__ __align__(16) uint8_t raw[];
  Shared<kDim>& shared = *reinterpret_cast<Shared<kDim>*>(raw);
  cuda::griddep_launch_dependents();
  shared.rows.read(a);
  Item item;
  int32_t i = blockIdx.x;
  if (!item_at(item, a, shared.rows, i)) return cuda::griddep_wait();
  Tile<kDim, kFp8> tile;
  Query<kDim, kFp8> q;
  int64_t at = address<kDim>(item, a, item.first);
  // Tiles that this step's tokens write come after the wait.
  const bool is_early = (item.first + 1) * kTile <= item.context;
  if (item.first < item.end && is_early) load_keys(tile, a.k, at), load_values(tile, a.v, at);
  cuda::griddep_wait();
  q.load(query_of<kDim>(a, item.t, item.heads(a)));
  if (item.first < item.end && !is_early) load_keys(tile, a.k, at), load_values(tile, a.v, at);
  if (threadIdx.x == 0) shared.counted.splits = 0;
  for (bool more = true; more;) {
    shared.note(Target::of(item, item.heads(a)));
    Item next;
    const auto find_next = [&] { more = item_at(next, a, shared.rows, i += gridDim.x); };
    if (kDim < 256) find_next();  // else there are no registers for it yet
    const State<kDim> state = attend_item(a, item, tile, q);
    if (kDim == 256) find_next();
    if (more) {
      q.load(query_of<kDim>(a, next.t, next.heads(a)));
      at = address<kDim>(next, a, next.first);
      if (next.first < next.end) load_keys(tile, a.k, at), load_values(tile, a.v, at);
    }
    publish(shared, state);
    __syncthreads();
    merge_counted<kDim>(a, shared.counted);
    finish_item(a, shared, shared.to, sink_of(a, shared.to.heads));
    __syncthreads();
    if (threadIdx.x == 0) {
      const auto [row, t, split, splits, heads] = shared.to;
      const bool is_last = splits > 1 && cuda::is_last_arrival(a.counters + row, splits);
      shared.counted = {row, t, splits > 1 ? splits : 0, is_last};
    }
    item = next;
  }
  __syncthreads();
  merge_counted<kDim>(a, shared.counted);
}

// The same for one token, a block an item: little code, for a step of one token must bring it from
// L2 in every layer. Tiles that a warp cannot hold yet come into L2 before the wait.
template <int kDim, bool kFp8>
__global__ void __launch_bounds__(kWarps * 32, kBlocksPerSm<kDim>)
    attend_one(const __grid_constant__ Params a) {
  extern __shared__ __align__(16) uint8_t raw[];
  Parts<kDim>& shared = *reinterpret_cast<Parts<kDim>*>(raw);
  cuda::griddep_launch_dependents();
  const Span span = a.spans[0];
  Item item;
  item.row = blockIdx.x % a.columns;
  item.kv_head = a.head_parts.kv_head(item.row);
  item.split = blockIdx.x / a.columns;
  item.t = 0;
  item.range = Range::of(a, a.by_span ? span.context : a.positions[0], /*split_tiles=*/0);
  item.context = span.context;
  if (item.split >= item.range.splits.count) return cuda::griddep_wait();
  item.slot = span.slot;
  item.find_tiles(a);
  const bool has_tile = item.first < item.end;
  const bool is_early = (item.first + 1) * kTile <= item.context;
  Tile<kDim, kFp8> tile;
  Query<kDim, kFp8> q;
  const int64_t at = address<kDim>(item, a, item.first);
  if (has_tile && is_early) load_keys(tile, a.k, at), load_values(tile, a.v, at);
  if (has_tile && !is_early) prefetch_tile<kDim, kFp8>(a.k, a.v, at);
#pragma unroll 1
  for (int i = 1; i <= kPrefetchTiles; ++i) {
    const int32_t tile = item.first + i * kWarps;
    if (tile >= item.end) break;
    prefetch_tile<kDim, kFp8>(a.k, a.v, address<kDim>(item, a, tile));
  }
  const Heads heads = item.heads(a);
  Target to = Target::of(item, heads);
  constexpr bool kHoldsTarget = kDim < 256;  // else there are no registers for it yet
  if (!kHoldsTarget) shared.note(to);
  float sink = kHoldsTarget ? sink_of(a, heads) : 0;
  const uint16_t* query = query_of<kDim>(a, item.t, heads);
  cuda::touch_parameters(a);
  cuda::griddep_wait();
  q.load(query);
  if (has_tile && !is_early) load_keys(tile, a.k, at), load_values(tile, a.v, at);
  publish(shared, attend_item(a, item, tile, q));
  __syncthreads();
  if (!kHoldsTarget) to = shared.to, sink = sink_of(a, to.heads);
  finish_item(a, shared, to, sink);
  // A warp has written its head's part, and merges it if it is the last to do so.
  const int h = threadIdx.x / 32;
  if (to.splits == 1 || h >= to.heads.count) return;
  __syncwarp();
  bool is_last = false;
  if (threadIdx.x % 32 == 0)
    is_last = cuda::is_last_arrival(a.counters + to.row * kHeads + h, to.splits);
  if (__any_sync(kAll, is_last)) merge_item<kDim>(a, {to.row, 0, to.splits, true}, to.heads, sink);
}

// Of a split, where a token's tiles are to go into `count`: whole rounds of a block's warps.
int32_t tiles_of_split(int32_t tiles, int32_t count) {
  if (tiles <= kSplitTiles) return kSplitTiles;
  count = std::clamp(count, 1, kMaxSplits);
  return ((tiles + count - 1) / count + kWarps - 1) / kWarps * kWarps;
}

template <int kDim, bool kFp8>
void launch(Ctx& cx, const Params& params, int32_t rows, int32_t splits) {
  Params a = params;
  const bool one = a.num_tokens == 1;
  const int32_t most = one ? a.columns * kMaxSplits : kBlocksPerSm<kDim> * cx.kernels.gpu.num_sms;
  for (; a.first < rows; a.first += kSlab) {
    a.num_rows = std::min(kSlab, rows - a.first);
    const int64_t items = int64_t{a.num_rows} * a.columns * splits;
    cuda::launch(cx.stream, one ? attend_one<kDim, kFp8> : attend_items<kDim, kFp8>,
                 {.grid = dim3(static_cast<unsigned>(std::min<int64_t>(items, most))),
                  .block = dim3(kWarps * 32),
                  .smem_bytes = one ? sizeof(Parts<kDim>) : sizeof(Shared<kDim>),
                  .reads_inputs = true},
                 a);
  }
}

}  // namespace

void attend_rows(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
                 const AttentionParams& params, const Step& s, bool by_span) {
  const bool is_too_wide = NIBBLE_CUDA_SM == 121 && kv.k.dim(3) == 256;
  if (by_span && (is_too_wide || is_for_warps(params, q, kv, s, cx.kernels.gpu.num_sms)))
    return attend_by_warps(cx, att, q, kv, params, s);
  Params a{arguments(att, q, kv, params, s)};
  a.head_parts = HeadParts::of(a.group);
  a.columns = a.kv_heads * a.head_parts.count;
  a.early_splits = std::clamp(kEarlyBlocks / a.columns, kMaxSplits / 2, kMaxSplits);
  a.few_tiles = std::clamp(8 * kFewTiles / a.columns, kFewTiles, kMaxSplits * kSplitTiles / 2);
  const int32_t rows = by_span ? s.num_spans : s.num_tokens;
  const AttentionScratch scratch(Scratch(cx.scratch), rows, a.columns, kv.k.dim(3));
  CHECK(std::min(rows, kSlab) * int64_t{a.columns} <= Ctx::kNumCounters);
  a.positions = s.positions;
  a.parts = {scratch.parts, reinterpret_cast<float2*>(scratch.part_sums)};
  a.counters = cx.counters;
  a.by_span = by_span;
  a.num_tokens = s.num_tokens;
  const int32_t longest = kv.max_pages * kv.page_size;
  const int32_t context = s.max_context > 0 ? std::min(s.max_context, longest) : longest;
  const int32_t keys = params.window > 0 ? std::min(params.window, context) : context;
  const int32_t tiles = (keys + (params.window > 0 ? 2 * kTile - 2 : kTile - 1)) / kTile;
  with_shape(kv, [&]<int kDim, bool kFp8>() {
    if constexpr (NIBBLE_CUDA_SM == 121 && kDim == 256)
      return CHECK(false);  // attend_items would spill; refused
    else {
      // A batch need not be split as its tokens alone: then blocks take one item each, of many
      // tiles.
      if (by_span && s.num_tokens > 1)
        a.split_tiles = tiles_of_split(tiles, kBlocksPerSm<kDim> * cx.kernels.gpu.num_sms /
                                                  (std::min(rows, kSlab) * a.columns));
      launch<kDim, kFp8>(cx, a, rows, most_splits(a, tiles));
    }
  });
}

void attend_tokens(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
                   const AttentionParams& params, const Step& s) {
  attend_rows(cx, att, q, kv, params, s, /*by_span=*/false);
}

}  // namespace nibble::ops::gpu
