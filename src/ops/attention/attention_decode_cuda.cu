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
#include "ops/attention/attention_splits.cuh"

namespace nibble::ops::gpu {
namespace {

using namespace split_keys;  // NOLINT

template <int kDim>
constexpr int kBlocksPerSm = kDim == 64 ? 2 : 1;

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

template <int kDim>
struct Shared : Parts<kDim> {
  Rows rows;
  Counted counted;
};

// The same of what attend_items has counted, if this block was the last.
template <int kDim>
__device__ __forceinline__ void merge_counted(const Params& a, const Counted& item) {
  if (item.splits == 0 || !item.is_last) return;
  const Heads heads = Heads::of(a, a.head_parts, item.row % a.columns);
  merge_item<kDim>(a, item, heads, sink_of(a, heads));
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
  finish_only_item(a, shared, to, sink);
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
  const int32_t rows = by_span ? s.num_spans : s.num_tokens;
  Params a = split_params(cx, att, q, kv, params, s, by_span, rows);
  CHECK(std::min(rows, kSlab) * int64_t{a.columns} <= Ctx::kNumCounters);
  const int32_t tiles = most_tiles(kv, params, s);
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
