// attention of many sequences of few keys, for spans of one token: a warp takes a token and KV head
// by itself, so that warps need not meet: with 8 warps to each, what they leave one another is as
// much as they read. Arguments: see attention_decode_cuda.cu. Not under --exact: one token's sums
// are made by 8 warps elsewhere.
// Bytes: as there. Idea: two tiles of 16 keys are on their way at a time; with 16 warps an SM that
// is 128 KB. Reached on one H200, chained in graphs, 2026-11-22, us (by 8 warps): 256 tokens at 200
// keys 28.9 (39.3), 90% of plain reads' speed, in windows of 128 21.0 (36.5); 128 tokens 20.4
// (20.8) and 10.6 (16.8); 64 tokens 9.1 (8.9) and 6.9 (8.3).
// Lost: weighing two tiles at a time (30.5 and 21.7 at 256 tokens for 29.2 and 21.2); bringing 4 or
// all tiles to come into L2 before the wait (no change in a step of 256 tokens).
#include <cfloat>

#include "cuda/launch.cuh"
#include "ops/attention/attention_decode.h"
#include "ops/attention/attention_one_token.cuh"

namespace nibble::ops::gpu {
namespace {

using namespace one_token;  // NOLINT

constexpr int kWarps = 8;
constexpr int kBlocksPerSm = NIBBLE_CUDA_SM == 121 ? 1 : 2;  // ptxas wants more registers there
constexpr int kMostTiles = 32;                               // a lane keeps the page of one

// A token and KV head.
struct Item {
  int32_t t, kv_head;
  Visible seen;
  int32_t begin, end;  // tiles; none: no span of one token
  int32_t page;        // lane l: of tile begin + l

  __device__ __forceinline__ Item(const Arguments& a, int32_t i) {
    const Span span = a.spans[i / a.kv_heads];
    kv_head = i % a.kv_heads;
    t = span.q_start;
    seen = {a.window > 0 ? max(0, span.context - a.window + 1) : 0, span.context};
    begin = seen.first / kTile;
    end = span.q_len == 1 ? span.context / kTile + 1 : begin;
    const int32_t tile = begin + static_cast<int32_t>(threadIdx.x) % 32;
    page = 0;
    if (tile < end)
      page = a.page_table[int64_t{span.slot} * a.max_pages + (tile * kTile >> a.page_shift)];
  }
  // Element 0 of a query head of the group, or of the last one, in q and att.
  __device__ __forceinline__ int64_t head_at(const Arguments& a, int32_t head) const {
    return ((int64_t{t} * a.kv_heads + kv_head) * a.group + min(head, a.group - 1)) * kDim;
  }
  // Element 0 of the first key of a tile.
  __device__ __forceinline__ int64_t address(const Arguments& a, int32_t tile) const {
    const int64_t at = __shfl_sync(kAll, page, tile - begin);
    return (((at * a.kv_heads + kv_head) << a.page_shift) +
            (tile * kTile & ((1 << a.page_shift) - 1))) *
           kDim;
  }
};

template <bool kFp8>
__device__ __forceinline__ void load_tile(Tile<kFp8>& tile, const Arguments& a, const Item& item,
                                          int32_t index) {
  const int64_t at = item.address(a, index);
  load_keys(tile, a.k, at);
  load_values(tile, a.v, at);
}

// A tile; the one after the next takes its place.
template <bool kFp8>
__device__ __forceinline__ void attend_tile(State& state, Tile<kFp8>& tile, const Arguments& a,
                                            const Item& item, const uint4 (&q)[2], int32_t index) {
  const int32_t next = index + 2;
  const int64_t at = item.address(a, next);
  float s[4];
  score(s, tile, q, index, item.seen, a.scale);
  if (next < item.end) load_keys(tile, a.k, at);
  weigh(state, s);
  clear_unseen(tile, index, item.seen);
  add_values(state, tile, s);
  if (next < item.end) load_values(tile, a.v, at);
}

__device__ __forceinline__ void store_item(const Arguments& a, const Item& item,
                                           const State& state) {
  const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = state.sum[h];
#pragma unroll
    for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(kAll, sum, step);
    const int head = 2 * p + h;
    if (head >= a.group) continue;
    const float sink = a.sinks == nullptr
                           ? -INFINITY
                           : cuda::bf16_value(a.sinks[item.kv_head * a.group + head]) * kLog2e;
    const float top = fmaxf(state.top[h], sink), by = exp2_fast(state.top[h] - top);
    const float factor = by / (sum * by + exp2_fast(sink - (top - kBoost)));
    const auto pair = [&](int j) {
      return pack_bf16(state.o[j][h] * factor, state.o[j][2 + h] * factor);
    };
    *reinterpret_cast<uint4*>(a.att + item.head_at(a, head) + 8 * g) = {pair(0), pair(1), pair(2),
                                                                        pair(3)};
  }
}

template <bool kFp8>
__global__ void __launch_bounds__(kWarps * 32, kBlocksPerSm)
    attend_short_spans(const __grid_constant__ Arguments a) {
  cuda::griddep_launch_dependents();
  const int32_t i = static_cast<int32_t>(blockIdx.x * kWarps + threadIdx.x / 32);
  if (i >= a.num_spans * a.kv_heads) return cuda::griddep_wait();
  const Item item(a, i);
  if (item.begin == item.end) return cuda::griddep_wait();
  Tile<kFp8> tile, second;
  // Tiles that this step's tokens write come after the wait.
  const bool is_early = (item.begin + 2) * kTile <= item.seen.last;
  if (is_early) load_tile(tile, a, item, item.begin), load_tile(second, a, item, item.begin + 1);
  cuda::griddep_wait();
  if (!is_early) load_tile(tile, a, item, item.begin);
  if (!is_early && item.begin + 1 < item.end) load_tile(second, a, item, item.begin + 1);
  uint4 q[2];
  load_query<kFp8>(q, a.q + item.head_at(a, static_cast<int>(threadIdx.x) % 32 / 4));
  State state = {{-FLT_MAX, -FLT_MAX}, {}, {}};
#pragma unroll 1
  for (int32_t index = item.begin; index < item.end; index += 2) {
    attend_tile(state, tile, a, item, q, index);
    if (index + 1 < item.end) attend_tile(state, second, a, item, q, index + 1);
  }
  store_item(a, item, state);
}

}  // namespace

bool is_short(const AttentionParams& params, const KvLayer& kv, const Step& s, int num_sms) {
  const int64_t keys = params.window > 0 ? params.window + kTile : s.max_context;
  return keys > 0 && keys <= kMostTiles * kTile && s.num_spans * kv.k.dim(1) >= 3 * num_sms;
}

void attend_short(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
                  const AttentionParams& params, const Step& s) {
  const Arguments a = arguments(att, q, kv, params, s);
  const int32_t blocks = (s.num_spans * a.kv_heads + kWarps - 1) / kWarps;
  const auto kernel =
      kv.k.dtype == DType::kF8E4M3 ? attend_short_spans<true> : attend_short_spans<false>;
  cuda::launch(cx.stream, kernel,
               {.grid = dim3(static_cast<unsigned>(blocks)),
                .block = dim3(kWarps * 32),
                .reads_inputs = true},
               a);
}

}  // namespace nibble::ops::gpu
