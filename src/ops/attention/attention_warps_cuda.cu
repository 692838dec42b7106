// attention of many sequences, for spans of one token: a warp takes a share of a token's keys for a
// KV head by itself, or where there is room two of a block do, so that few need to meet: with 8
// warps to each, what they leave one another is as much as they read. Arguments: see
// attention_decode_cuda.cu. Not under --exact: the shares depend on the batch.
// Bytes: as there. Idea: two tiles of 16 keys are on their way at a time (one of 256 dims in bf16);
// that is 128 KB an SM. The last warp of a token and KV head puts the shares together, in their
// order. Reached on one H200, chained in graphs, 2026-11-22, us (by 8 warps): 256 tokens of 8 KV
// heads of 64 dims at 200 keys 28.9 (39.3), 90% of plain reads' speed, in windows of 128 21.0
// (36.5); 2026-11-23 at 4,096 keys 563 (897), of 128 dims 1,103 (90%), 64 tokens 154 (222) and 295;
// by two warps for one, 64 tokens at 160 keys 12.3 (19.0), of 64 dims 7.2 (9.0).
// Lost: weighing two tiles at a time; tiles into L2 before the wait: docs/lab/attention.md.
#include <cfloat>

#include "cuda/arrivals.cuh"
#include "cuda/launch.cuh"
#include "ops/attention/attention_decode.h"
#include "ops/attention/attention_one_token.cuh"
#include "ops/attention/attention_scratch.h"

namespace nibble::ops::gpu {
namespace {

using namespace one_token;  // NOLINT

constexpr int kWarps = 8;
constexpr int kShareTiles =
    8;  // of a share, at least: what it leaves is an eighth of what it reads
constexpr int kFewTiles = 32, kLongTiles = 64;  // of a token
template <int kDim>
constexpr int kMergedHeads = kDim == 64 ? 1 : 4;  // that a warp puts together at a time
template <int kDim>                               // ptxas wants more registers on sm_121
constexpr int kBlocksPerSm = kDim == 64 && NIBBLE_CUDA_SM != 121 ? 2 : 1;
template <int kDim, bool kFp8>
constexpr int kDepth = sizeof(Tile<kDim, kFp8>) <= 256 ? 2 : 1;  // tiles on their way

struct Params : Arguments {
  PartsAt parts;                 // of [spans, columns, shares, kHeads]
  uint32_t* counters = nullptr;  // [spans, columns], zero
  int32_t columns = 0;           // KV heads, each as often as its group has parts
  HeadParts head_parts;
  int32_t shares = 1, share_tiles = 0;  // of a token's keys, at most; tiles of one
};

// A share of a token's keys, for a part of the query heads of a KV head.
struct Item {
  int32_t row, t, kv_head;
  Visible seen;
  int32_t share, shares;
  int32_t begin, end;  // tiles; none: no span of one token, or fewer shares
  int32_t page;        // lane l: of tile begin + l, begin + 32 + l, ..

  __device__ __forceinline__ Item(const Params& a, int32_t i) {
    const int32_t rows = a.num_spans * a.columns;
    share = i / rows;  // long texts' last shares last
    row = i - share * rows;
    const Span span = a.spans[row / a.columns];
    kv_head = a.head_parts.kv_head(row % a.columns);
    t = span.q_start;
    seen = {a.window > 0 ? max(0, span.context - a.window + 1) : 0, span.context};
    const int32_t first = seen.first / kTile, last = span.context / kTile + 1;
    shares = (last - first + a.share_tiles - 1) / a.share_tiles;
    begin = first + share * a.share_tiles;
    end = span.q_len == 1 ? min(begin + a.share_tiles, last) : begin;
    page = 0;
    find_pages(a, begin);
  }
  __device__ __forceinline__ void find_pages(const Params& a, int32_t tile) {
    tile += static_cast<int32_t>(threadIdx.x) % 32;
    const int64_t slot = a.spans[row / a.columns].slot;
    if (tile < end) page = a.page_table[slot * a.max_pages + (tile * kTile >> a.page_shift)];
  }
  __device__ __forceinline__ Heads heads(const Params& a) const {
    return Heads::of(a, a.head_parts, row % a.columns);
  }
  // Element 0 of a query head in q and att.
  template <int kDim>
  __device__ __forceinline__ int64_t head_at(const Params& a, int32_t head) const {
    return (int64_t{t} * a.kv_heads * a.group + head) * kDim;
  }
  // Element 0 of the first key of a tile.
  template <int kDim>
  __device__ __forceinline__ int64_t address(const Params& a, int32_t tile) const {
    const int64_t at = __shfl_sync(kAll, page, (tile - begin) % 32);
    return (((at * a.kv_heads + kv_head) << a.page_shift) +
            (tile * kTile & ((1 << a.page_shift) - 1))) *
           kDim;
  }
};

template <int kDim, bool kFp8>
__device__ __forceinline__ void load_tile(Tile<kDim, kFp8>& tile, const Params& a, const Item& item,
                                          int32_t index) {
  const int64_t at = item.address<kDim>(a, index);
  load_keys(tile, a.k, at);
  load_values(tile, a.v, at);
}

// A tile; the one that this warp comes to kDepth tiles later takes its place.
template <int kTogether, int kDim, bool kFp8>
__device__ __forceinline__ void attend_tile(State<kDim>& state, Tile<kDim, kFp8>& tile,
                                            const Params& a, Item& item, const Query<kDim, kFp8>& q,
                                            int32_t index) {
  const int32_t next = index + kDepth<kDim, kFp8> * kTogether, in_pages = (next - item.begin) % 32;
  if (in_pages < kTogether) item.find_pages(a, next - in_pages);
  const int64_t at = item.address<kDim>(a, next);
  float s[4];
  score(s, tile, q, index, item.seen, a.scale);
  if (next < item.end) load_keys(tile, a.k, at);
  weigh(state, s);
  clear_unseen(tile, index, item.seen);
  add_values(state, tile, s);
  if (next < item.end) load_values(tile, a.v, at);
}

// Of a token whose keys are one share.
template <int kDim>
__device__ __forceinline__ void store_item(const Params& a, const Item& item,
                                           const State<kDim>& state) {
  const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
  const Heads heads = item.heads(a);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float sum = sum_of_keys(state.sum[h]);
    const int head = heads.first + 2 * p + h;
    if (2 * p + h >= heads.count) continue;
    const float sink = sink_of(a, head);
    const float top = fmaxf(state.top[h], sink), by = exp2_fast(state.top[h] - top);
    const float factor = by * a.v_scale / (sum * by + exp2_fast(sink - (top - kBoost)));
    const auto pair = [&](int j) {
      return pack_bf16(state.o[j][h] * factor, state.o[j][2 + h] * factor);
    };
#pragma unroll
    for (int c = 0; c < kDim / 64; ++c)
      *reinterpret_cast<uint4*>(a.att + item.head_at<kDim>(a, head) + 64 * c + 8 * g) = {
          pair(4 * c), pair(4 * c + 1), pair(4 * c + 2), pair(4 * c + 3)};
  }
}

// Of one of several shares; whoever is the last to leave his puts them together.
template <int kDim>
__device__ __forceinline__ void leave_share(const Params& a, const Item& item,
                                            const State<kDim>& state) {
  const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
  const Heads heads = item.heads(a);
  const int64_t first = int64_t{item.row} * a.shares * kHeads;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float sum = sum_of_keys(state.sum[h]);
    const int head = 2 * p + h;
    if (head >= heads.count) continue;
    const int64_t at = first + item.share * kHeads + head;
    if (g == 0) a.parts.sums[at] = {state.top[h], sum};
#pragma unroll
    for (int c = 0; c < kDim / 64; ++c)
      store_panel(a.parts.o + at * kDim + 64 * c + 8 * g, state, c, h);
  }
  __syncwarp();
  const bool is_last = lane == 0 && cuda::is_last_arrival(a.counters + item.row, item.shares);
  if (!__any_sync(kAll, is_last)) return;
  constexpr int kMerged = kMergedHeads<kDim>;
  int h = 0;
  for (; h + kMerged <= heads.count; h += kMerged) {
    float sinks[kMerged];
#pragma unroll
    for (int i = 0; i < kMerged; ++i) sinks[i] = sink_of(a, heads.first + h + i);
    merge_splits<kDim>(a.att + item.head_at<kDim>(a, heads.first + h), a.parts, first + h,
                       item.shares, sinks, a.v_scale);
  }
  for (; h < heads.count; ++h) {
    const float sinks[] = {sink_of(a, heads.first + h)};
    merge_splits<kDim>(a.att + item.head_at<kDim>(a, heads.first + h), a.parts, first + h,
                       item.shares, sinks, a.v_scale);
  }
}

// What one of two warps has of a share, for the other: false, if that is this one.
template <int kDim>
__device__ __forceinline__ bool add_other(State<kDim>& state) {
  constexpr int kFloats = kDim / 4 + 4;
  __shared__ float parts[kWarps / 2][kFloats][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float(*const part)[32] = parts[warp / 2];
  if (warp % 2 == 1) {
#pragma unroll
    for (int j = 0; j < kDim / 4; ++j) part[j][lane] = state.o[j / 4][j % 4];
#pragma unroll
    for (int h = 0; h < 2; ++h)
      part[kDim / 4 + h][lane] = state.top[h], part[kDim / 4 + 2 + h][lane] = state.sum[h];
  }
  asm volatile("bar.sync %0, 64;" ::"r"(1 + warp / 2) : "memory");
  if (warp % 2 == 1) return false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float other = part[kDim / 4 + h][lane], top = fmaxf(state.top[h], other);
    const float mine = exp2_fast(state.top[h] - top), theirs = exp2_fast(other - top);
    state.top[h] = top;
    state.sum[h] = state.sum[h] * mine + part[kDim / 4 + 2 + h][lane] * theirs;
#pragma unroll
    for (int j = 0; j < kDim / 16; ++j)
#pragma unroll
      for (int i = h; i < 4; i += 2)
        state.o[j][i] = state.o[j][i] * mine + part[4 * j + i][lane] * theirs;
  }
  return true;
}

// kTogether: warps of a share, one or two, that take its tiles by turns.
template <int kDim, bool kFp8, int kTogether>
__global__ void __launch_bounds__(kWarps * 32, kBlocksPerSm<kDim>)
    attend_shares(const __grid_constant__ Params a) {
  constexpr int kTiles = kDepth<kDim, kFp8>, kAhead = kTiles * kTogether;
  cuda::griddep_launch_dependents();
  const int32_t warp = static_cast<int32_t>(blockIdx.x * kWarps + threadIdx.x / 32);
  const int32_t i = warp / kTogether;
  if (i >= a.num_spans * a.columns * a.shares) return cuda::griddep_wait();
  Item item(a, i);
  if (item.begin >= item.end) return cuda::griddep_wait();
  Tile<kDim, kFp8> tile[kTiles];
  const int32_t first = item.begin + warp % kTogether;
  // Tiles that this step's tokens write come after the wait.
  const bool is_early = (item.begin + kAhead) * kTile <= item.seen.last;
  const auto start = [&] {
#pragma unroll
    for (int d = 0; d < kTiles; ++d)
      if (first + d * kTogether < item.end) load_tile(tile[d], a, item, first + d * kTogether);
  };
  if (is_early) start();
  cuda::griddep_wait();
  if (!is_early) start();
  Query<kDim, kFp8> q;
  const Heads heads = item.heads(a);
  const int head = min(static_cast<int>(threadIdx.x) % 32 / 4, heads.count - 1);
  q.load(a.q + item.head_at<kDim>(a, heads.first + head));
  State<kDim> state;
#pragma unroll 1
  for (int32_t index = first; index < item.end; index += kAhead) {
#pragma unroll
    for (int d = 0; d < kTiles; ++d)
      if (index + d * kTogether < item.end)
        attend_tile<kTogether>(state, tile[d], a, item, q, index + d * kTogether);
  }
  if constexpr (kTogether == 2) {
    if (!add_other(state)) return;
  }
  const Item done(a, i);  // anew: it need not stay in registers meanwhile
  done.shares == 1 ? store_item(a, done, state) : leave_share(a, done, state);
}

int64_t columns_of(const Tensor& q, const KvLayer& kv) {
  const int64_t heads = q.dim(1) / kv.k.dim(3);
  return kv.k.dim(1) * HeadParts::of(static_cast<int32_t>(heads / kv.k.dim(1))).count;
}

// Keys that a token sees at most, and may lie in a tile more; 0: unknown.
int32_t most_keys(const AttentionParams& params, const Step& s) {
  return params.window > 0 ? params.window + kTile : s.max_context;
}

}  // namespace

bool is_for_warps(const AttentionParams& params, const Tensor& q, const KvLayer& kv, const Step& s,
                  int num_sms) {
  const int32_t keys = most_keys(params, s);
  const int64_t items = s.num_spans * columns_of(q, kv);
  if (s.num_spans > AttentionScratch::kParts || items > Ctx::kNumCounters) return false;
  return keys > 0 && items >= (keys <= kFewTiles * kTile ? 3 : 1) * num_sms;
}

void attend_by_warps(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
                     const AttentionParams& params, const Step& s) {
  Params a{arguments(att, q, kv, params, s)};
  a.head_parts = HeadParts::of(a.group);
  a.columns = a.kv_heads * a.head_parts.count;
  const AttentionScratch scratch(Scratch(cx.scratch), s.num_spans, a.columns, kv.k.dim(3));
  a.parts = {scratch.parts, reinterpret_cast<float2*>(scratch.part_sums)};
  a.counters = cx.counters;
  const int64_t rows = int64_t{s.num_spans} * a.columns;
  const int32_t known = most_keys(params, s),
                keys = known > 0 ? known : kv.max_pages * kv.page_size;
  const int32_t tiles = (keys + kTile - 1) / kTile;
  with_shape(kv, [&]<int kDim, bool kFp8>() {
    // Warps for the GPU once, or twice over for long texts, so that it stays full to the end; one
    // warp more would take a round of its own.
    // Where there is room two share an item, which is less than a share more leaves behind.
    const int64_t room = int64_t{kWarps} * kBlocksPerSm<kDim> * cx.kernels.gpu.num_sms;
    const int together = kDim < 256 && 2 * rows <= room ? 2 : 1;  // of 256 ptxas lacks registers
    const int64_t wanted = (tiles >= kLongTiles ? 2 : 1) * room / together;
    const int64_t most =
        std::min<int64_t>({AttentionScratch::kMaxSplits, AttentionScratch::kParts / s.num_spans,
                           tiles / kShareTiles});
    const auto shares = static_cast<int32_t>(std::max<int64_t>(1, std::min(wanted / rows, most)));
    a.share_tiles = (tiles + shares - 1) / shares;
    a.shares = (tiles + a.share_tiles - 1) / a.share_tiles;
    const int64_t blocks = (rows * a.shares * together + kWarps - 1) / kWarps;
    auto* kernel = attend_shares<kDim, kFp8, 1>;
    if constexpr (kDim < 256)
      if (together == 2) kernel = attend_shares<kDim, kFp8, 2>;
    cuda::launch(cx.stream, kernel,
                 {.grid = dim3(static_cast<unsigned>(blocks)),
                  .block = dim3(kWarps * 32),
                  .reads_inputs = true},
                 a);
  });
}

}  // namespace nibble::ops::gpu
