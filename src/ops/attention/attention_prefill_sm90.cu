// attention on a Hopper GPU for spans of several tokens (prefill), by wgmma.
//   q       [T, Q * D] bf16, in      att [T, Q * D] bf16, out
//   k, v    [pages, G, P, D] bf16 or E4M3, in, P a power of two, P % 16 == 0
//   page_table [slots, max_pages] i32, in      sinks [Q] bf16 or none, in
// Needs D = 64, 128 or 256, Q / G <= 16.
// Operations: 4 D Q for each key that a token sees: at 8,192 tokens of gpt-oss-120b 0.55 T in a
// full layer, 0.7 ms at the 790 TFLOP/s that an H200's dense products reach (its exponentials alone
// take 0.58 ms of the special function units, half of that with heads of 128 dims); 17 G in a
// window layer, where q and att, 134 MB, take 30 us.
//
// Flash attention over tiles of (token, head) rows: the query heads of a KV head share its keys. A
// block walks over items, one tile of 192 rows (128 of more dims) and one KV head each, longest
// first. One warpgroup fills: queries into one of two buffers, keys and values into a ring, 64 dims
// in rows of 128 bytes swizzled as wgmma wants them, values transposed by the product itself. Two
// or three warpgroups multiply 64 rows each: the scores of a tile and the values of the one before
// are asked for together, and the warpgroups take turns in asking, so that one's exponentials run
// beside another's products. Weights are relative to the row's largest score of some earlier tile:
// they shrink anew only when a score comes that is 2^8 above it.
//
// Reached on one H200, 2026-11-23, 4,096 query columns, TFLOP/s at 8,192 and 2,048 tokens: 64 dims
// 554 and 437, 128 dims 674 and 568, 256 dims 541 and 469. Tiles of 64 keys for windows, which cut
// less away, and for E4M3 pages, whose loads pass through registers.
// Lost: two warpgroups of 64 dims, no turns, other tiles: docs/lab/attention.md.
#include "cuda/mma_sm90.cuh"
#include "ops/attention/attention_tiles.cuh"
#include "ops/attention/attention_values_sm90.cuh"

namespace nibble::ops::gpu {
namespace {

using namespace tiles;               // NOLINT
using namespace nibble::cuda::sm90;  // NOLINT
using tiles::copy_16;

// An item's rows, and how keys come in tiles of kTile.
template <int kDim, int kTile>
struct Shape {
  static constexpr int kGroups = kDim == 64 ? 3 : 2;  // warpgroups that multiply
  static constexpr int kThreads = 128 * (1 + kGroups);
  static constexpr int kRows = 64 * kGroups;                   // (token, head) pairs of an item
  static constexpr int kFillRegisters = kDim == 64 ? 32 : 40;  // of the 64 K of an SM
  static constexpr int kMultiplyRegisters = kDim == 64 ? 160 : 232;
  static constexpr int kPanels = kDim / 64;
  static constexpr int kQBytes = kRows * kDim * 2, kBuffers = kDim == 256 ? 1 : 2;  // of queries
  static constexpr int kKeyBytes = kTile * kDim * 2;
  static constexpr int kStages = (kDim == 256 ? 128 : 160) * 1024 / (2 * kKeyBytes);
};
constexpr float kTolerated = 8;  // powers of two that a score may lie above its row's `top`

// Named barriers: 1 of the filling warpgroup, 2.. of one that multiplies, kTurns.. of turns.
constexpr int kTurns = 8;
__device__ __forceinline__ void wait_turn(int group) {
  asm volatile("bar.sync %0, 256;" ::"r"(kTurns + group) : "memory");
}
template <int kGroups>
__device__ __forceinline__ void pass_turn(int group) {
  asm volatile("bar.arrive %0, 256;" ::"r"(kTurns + (group + 1) % kGroups) : "memory");
}

template <int kTile>
using Scores = float[kTile / 2];
template <int kTile>
using Weights = uint32_t[kTile / 16][4];
template <int kDim>
struct Sums {
  float o[kDim / 2];
  float top[2], sum[2];  // rows g, g + 8
};

// Takes keys out that a row does not see. `row`: this lane's first of the item's; its keys are
// those of the tile from `key` on.
template <int kTile>
__device__ __forceinline__ void mask(Scores<kTile>& s, const TileParams& a, int row, int32_t pos,
                                     int32_t key) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t behind = pos + token_of(a, row + 8 * half) - key - threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < kTile / 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (behind - (8 * j + i) >= a.seen) s[4 * j + 2 * half + i] = -INFINITY;
  }
}

// Scores become weights. True where `shrink` is what is summed so far shrinks by: rarely but in the
// first tile.
template <int kDim, int kTile>
__device__ __forceinline__ bool weigh(Scores<kTile>& s, Sums<kDim>& sums, float scale,
                                      float (&shrink)[2]) {
  float top[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float even = s[2 * half], odd = s[2 * half + 1];
#pragma unroll
    for (int j = 1; j < kTile / 8; ++j) {
      even = fmaxf(even, s[4 * j + 2 * half]);
      odd = fmaxf(odd, s[4 * j + 2 * half + 1]);
    }
    top[half] = fmaxf(even, odd) * scale;
  }
  const bool has_grown =
      __any_sync(kAll, top[0] > sums.top[0] + kTolerated || top[1] > sums.top[1] + kTolerated);
  if (has_grown) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = fmaxf(sums.top[half], quad_max(top[half]));
      shrink[half] = exp2_fast(sums.top[half] - top[half]);
      sums.top[half] = top[half];
      sums.sum[half] *= shrink[half];
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float even = 0, odd = 0;
#pragma unroll
    for (int j = 0; j < kTile / 8; ++j) {
      const int at = 4 * j + 2 * half;
      even += s[at] = exp2_fast(fmaf(s[at], scale, -sums.top[half]));
      odd += s[at + 1] = exp2_fast(fmaf(s[at + 1], scale, -sums.top[half]));
    }
    sums.sum[half] += even + odd;
  }
  return has_grown;
}

template <int kTile>
__device__ __forceinline__ void pack(Weights<kTile>& w, const Scores<kTile>& s) {
#pragma unroll
  for (int step = 0; step < kTile / 16; ++step)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      w[step][i] = cuda::pack_bf16(s[8 * step + 2 * i], s[8 * step + 2 * i + 1]);
}

struct Item {
  Rows rows;
  int32_t kv_head;
};

// One block. Items are numbered by tiles, last first, and within one by KV head; rounds go back and
// forth over the blocks, so that long and short ones add up.
template <int kDim, int kTile, bool kFp8>
struct SpanBlock : Shape<kDim, kTile> {
  using Tiles = Shape<kDim, kTile>;
  using Tiles::kGroups, Tiles::kRows, Tiles::kPanels;
  using Tiles::kQBytes, Tiles::kBuffers, Tiles::kKeyBytes, Tiles::kStages;
  static constexpr int kPanelBytes = kTile * kRowBytes, kQPanelBytes = kRows * kRowBytes;
  static constexpr int kKeysAt = kBuffers * kQBytes;
  static constexpr int kBarriersAt = kKeysAt + kStages * 2 * kKeyBytes;
  static constexpr int kItemsAt = kBarriersAt + 2 * (kStages + kBuffers) * 8;
  static constexpr int kSpanAt = kItemsAt + kBuffers * sizeof(Item);
  static constexpr int kBytes = kSpanAt + sizeof(TiledSpan) + 1024;  // to align it

  __device__ __forceinline__ SpanBlock(const TileParams& a, char* base) : a(a), base(base) {}
  const TileParams& a;
  char* base;  // of shared memory, 1024-byte aligned
  uint32_t smem = shared_address(base);
  int stage = 0, buffer = 0;
  uint32_t phase = 0, buffer_phase = 0;

  __device__ __forceinline__ uint32_t full(int s) const { return smem + kBarriersAt + s * 8; }
  __device__ __forceinline__ uint32_t empty(int s) const { return full(kStages + s); }
  __device__ __forceinline__ uint32_t item_full(int s) const { return full(2 * kStages + s); }
  __device__ __forceinline__ uint32_t item_empty(int s) const {
    return full(2 * kStages + kBuffers + s);
  }
  __device__ __forceinline__ uint32_t queries(int s) const { return smem + s * kQBytes; }
  __device__ __forceinline__ uint32_t keys(int s) const {
    return smem + kKeysAt + s * 2 * kKeyBytes;
  }
  __device__ __forceinline__ uint32_t values(int s) const { return keys(s) + kKeyBytes; }
  __device__ __forceinline__ Item& item(int s) const {
    return reinterpret_cast<Item*>(base + kItemsAt)[s];
  }
  __device__ __forceinline__ TiledSpan& last_span() const {
    return *reinterpret_cast<TiledSpan*>(base + kSpanAt);
  }
  __device__ __forceinline__ void next_stage() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
  __device__ __forceinline__ void next_buffer() {
    if (++buffer == kBuffers) buffer = 0, buffer_phase ^= 1;
  }
  __device__ __forceinline__ static int number_of(int round) {
    const int blocks = gridDim.x, mine = blockIdx.x;
    return round * blocks + (round % 2 == 0 ? mine : blocks - 1 - mine);
  }

  __device__ void prepare() const {
    if (threadIdx.x == 0) {
      for (int s = 0; s < kStages; ++s) {
        barrier_init(full(s), 128);
        barrier_init(empty(s), 4 * kGroups);
      }
      for (int s = 0; s < kBuffers; ++s) {
        barrier_init(item_full(s), 128);
        barrier_init(item_empty(s), 4 * kGroups);
      }
      barrier_init_fence();
      last_span() = {};
    }
    __syncthreads();
  }

  // ---- the filling warpgroup: a thread brings 16 bytes of every 16th row

  static constexpr int kBlocks = kTile / kBlock;  // of a tile of keys

  // Where the rows of a block lie in the pages, below 2^31 in any memory: lane i has the tile's
  // i-th.
  __device__ __forceinline__ int32_t find_blocks(const int32_t* table, int32_t head, int32_t key,
                                                 int32_t key_end) const {
    const int32_t lane = threadIdx.x % 32, first = key + lane * kBlock;
    if (lane >= kBlocks || first >= key_end) return 0;
    return ((table[first >> a.page_shift] * a.kv_heads + head) << a.page_shift) +
           (first & ((1 << a.page_shift) - 1));
  }

  // The next `left` keys and values to the stage, zeros behind them: what lies there may be
  // anything.
  __device__ __forceinline__ void bring_keys(int32_t blocks, int32_t left) const {
    const int chunk = threadIdx.x % 8, row = threadIdx.x / 8;
    const uint32_t to = keys(stage) + swizzled(row, chunk);
    constexpr int kElement = kFp8 ? 1 : 2, kAt = kElement * kDim;  // bytes of a row
    const uint8_t* k = static_cast<const uint8_t*>(a.k) + chunk * 8 * kElement;
    const uint8_t* v = static_cast<const uint8_t*>(a.v) + chunk * 8 * kElement;
    const auto to_block = [&](int i, int panel) {
      return to + i * kBlock * kRowBytes + panel * kPanelBytes;
    };
    if constexpr (kFp8) {
#pragma unroll
      for (int i = 0; i < kBlocks * kPanels; i += 2) {
        uint2 codes[2][2] = {};
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const int block = (i + n) / kPanels, panel = (i + n) % kPanels;
          const int64_t at = int64_t{__shfl_sync(kAll, blocks, block) + row} * kAt + panel * 64;
          if (block * kBlock + row >= left) continue;
          codes[n][0] = cuda::load8(k + at), codes[n][1] = cuda::load8(v + at);
        }
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const uint32_t at = to_block((i + n) / kPanels, (i + n) % kPanels);
          store_as_bf16(at, codes[n][0]), store_as_bf16(at + kKeyBytes, codes[n][1]);
        }
      }
      fence_async_proxy();
      barrier_arrive(full(stage));
    } else {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        const int64_t at = int64_t{__shfl_sync(kAll, blocks, i) + row} * kAt;
        const bool is_there = i * kBlock + row < left;
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          copy_16(to_block(i, panel), k + at + panel * kRowBytes, is_there);
          copy_16(to_block(i, panel) + kKeyBytes, v + at + panel * kRowBytes, is_there);
        }
      }
      barrier_arrive_after_copies(full(stage));
    }
  }

  __device__ __forceinline__ void bring_queries(const Rows& r, int32_t head) const {
    const int chunk = threadIdx.x % 8;
    const uint32_t to = queries(buffer) + swizzled(threadIdx.x / 8, chunk);
#pragma unroll 4
    for (int i = 0; i < kRows / 16; ++i) {
      const int32_t row = row_at(a, r, threadIdx.x / 8 + 16 * i, head);
      const uint16_t* from = a.q + int64_t{max(row, 0)} * kDim + chunk * 8;
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel)
        copy_16(to + i * 16 * kRowBytes + panel * kQPanelBytes, from + 64 * panel, row >= 0);
    }
    barrier_arrive_after_copies(item_full(buffer));
  }

  __device__ __forceinline__ void find_item(int32_t tile, int32_t kv_head) const {
    TiledSpan span = last_span();
    if (!span.has(tile)) span = find_span(a, tile);
    __syncwarp();
    if (threadIdx.x == 0) last_span() = span, item(buffer) = {rows_of(a, span, tile), kv_head};
  }

  __device__ __forceinline__ void fill() {
    for (int round = 0;; ++round) {
      const int number = number_of(round), tile = number / a.kv_heads;
      const int32_t head = number - tile * a.kv_heads;
      barrier_wait(item_empty(buffer), buffer_phase ^ 1);
      if (threadIdx.x < 32) find_item(tile, head);
      warpgroup_barrier(1);
      const Rows r = item(buffer).rows;
      const int32_t* table = a.page_table + int64_t{r.span.slot} * a.max_pages;
      int32_t blocks = find_blocks(table, head, r.key_begin, r.num_rows > 0 ? r.key_end : 0);
      if (round == 0) cuda::griddep_wait();
      if (r.num_rows == 0) return barrier_arrive(item_full(buffer));
      bring_queries(r, head);
      for (int32_t key = r.key_begin; key < r.key_end; key += kTile) {
        barrier_wait(empty(stage), phase ^ 1);
        bring_keys(blocks, r.key_end - key);
        next_stage();
        blocks = find_blocks(table, head, key + kTile, r.key_end);
      }
      next_buffer();
    }
  }

  // ---- the warpgroups that multiply

  __device__ __forceinline__ void ask_scores(Scores<kTile>& s, uint32_t q) const {
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step)
      wgmma_bf16<kTile>(s, swizzled_128(q + step / 4 * kQPanelBytes + step % 4 * 32),
                        swizzled_128(keys(stage) + step / 4 * kPanelBytes + step % 4 * 32),
                        step > 0);
    wgmma_commit();
  }
  __device__ __forceinline__ void ask_values(Sums<kDim>& sums, const Weights<kTile>& w, int s,
                                             int is_added) const {
#pragma unroll
    for (int step = 0; step < kTile / 16; ++step)
      multiply_values(sums.o, w[step],
                      swizzled_columns(values(s) + step * 16 * kRowBytes, kPanelBytes),
                      step > 0 ? 1 : is_added);
    wgmma_commit();
  }
  __device__ __forceinline__ void wait_keys() const {
    barrier_wait(full(stage), phase);
    fence_async_proxy();
  }
  __device__ __forceinline__ void release(uint32_t barrier) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
  }

  __device__ __forceinline__ void multiply(int group) {
    if (group == kGroups - 1) pass_turn<kGroups>(group);
    while (true) {
      barrier_wait(item_full(buffer), buffer_phase);
      fence_async_proxy();
      if (item(buffer).rows.num_rows == 0) break;
      attend(group);
      release(item_empty(buffer));
      next_buffer();
    }
    if (group == 0) wait_turn(group);  // takes the arrival that is left
  }

  // One item's 64 rows of a warpgroup.
  __device__ __forceinline__ void attend(int group) {
    const Rows& rows = item(buffer).rows;
    const int32_t key_begin = rows.key_begin, key_end = rows.key_end;
    const int32_t first_pos = rows.span.context + rows.first;
    const uint32_t q = queries(buffer) + group * 64 * kRowBytes;
    const auto hide = [&](Scores<kTile>& s, int32_t key) {
      const bool all_seen =
          key + kTile <= first_pos + 1 && key_end - key <= static_cast<int32_t>(a.seen);
      if (!all_seen) mask<kTile>(s, a, first_row(group), first_pos, key);
    };
    Scores<kTile> s;
    Weights<kTile> w;
    Sums<kDim> sums{.top = {-FLT_MAX, -FLT_MAX}, .sum = {}};
    float shrink[2];
    wait_keys();
    wait_turn(group);
    wgmma_fence();
    ask_scores(s, q);
    pass_turn<kGroups>(group);
    wgmma_wait<0>();
    hide(s, key_begin);
    weigh<kDim, kTile>(s, sums, a.scale, shrink);
    pack<kTile>(w, s);
    int is_added = 0;
    for (int32_t key = key_begin + kTile; key < key_end; key += kTile) {
      const int before = stage;
      next_stage();
      wait_keys();
      wait_turn(group);
      wgmma_fence();
      ask_scores(s, q);
      ask_values(sums, w, before, is_added);
      is_added = 1;
      pass_turn<kGroups>(group);
      wgmma_wait<1>();
      hide(s, key);
      const bool has_grown = weigh<kDim, kTile>(s, sums, a.scale, shrink);
      wgmma_wait<0>();
      release(empty(before));
      if (has_grown) {
#pragma unroll
        for (int i = 0; i < kDim / 2; ++i) sums.o[i] *= shrink[i / 2 % 2];
      }
      pack<kTile>(w, s);
    }
    wgmma_fence();
    ask_values(sums, w, stage, is_added);
    wgmma_wait<0>();
    release(empty(stage));
    next_stage();
    store(sums, group);
  }

  // Row g of this warp's 16.
  __device__ __forceinline__ static int first_row(int group) {
    return group * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
  }

  // By way of the queries, so that rows leave in pieces of 16 bytes side by side.
  __device__ __forceinline__ void store(const Sums<kDim>& sums, int group) const {
    const int lane = threadIdx.x % 32, kv_head = item(buffer).kv_head;
    char* out = base + buffer * kQBytes;
    warpgroup_barrier(2 + group);  // nobody's products read the queries any more
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row(group) + 8 * half;
      const float by = share_of(a, kv_head, row, sums.top[half], quad_sum(sums.sum[half]));
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j)
        *reinterpret_cast<uint32_t*>(out + tile_byte<kRows>(row, j) + lane % 4 * 4) =
            cuda::pack_bf16(sums.o[4 * j + 2 * half] * by, sums.o[4 * j + 2 * half + 1] * by);
    }
    __syncwarp();
    const Rows r = item(buffer).rows;
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      const int row = group * 64 + threadIdx.x / 32 % 4 * 16 + i + lane / 8;
      const int64_t at = row_at(a, r, row, kv_head);
#pragma unroll
      for (int chunk = lane % 8; chunk < kDim / 8; chunk += 8)
        if (at >= 0)
          *reinterpret_cast<uint4*>(a.att + at * kDim + chunk * 8) =
              *reinterpret_cast<const uint4*>(out + tile_byte<kRows>(row, chunk));
    }
  }
};

template <int kDim, int kTile, bool kFp8>
__global__ void __launch_bounds__(Shape<kDim, kTile>::kThreads, 1)
    attend_tiles(const __grid_constant__ TileParams a) {
  extern __shared__ char raw[];
  using Tiles = Shape<kDim, kTile>;
  SpanBlock<kDim, kTile, kFp8> block(a, raw + (1024 - shared_address(raw) % 1024) % 1024);
  block.prepare();
  cuda::griddep_launch_dependents();
  if (threadIdx.x < 128) {
    fewer_registers<Tiles::kFillRegisters>();
    block.fill();
  } else {
    more_registers<Tiles::kMultiplyRegisters>();
    block.multiply(threadIdx.x / 128 - 1);
  }
}

template <int kDim, int kTile, bool kFp8>
void launch(Ctx& cx, const TileParams& a) {
  const auto blocks = static_cast<unsigned>(cx.kernels.gpu.num_sms);
  cuda::launch(cx.stream, attend_tiles<kDim, kTile, kFp8>,
               {.grid = dim3(blocks),
                .block = dim3(Shape<kDim, kTile>::kThreads),
                .smem_bytes = SpanBlock<kDim, kTile, kFp8>::kBytes,
                .reads_inputs = true},
               a);
}

}  // namespace

void attend_spans_sm90(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
                       const AttentionParams& params, const Step& s) {
  if (cx.left_heads.are_left) return attend_left_heads(cx, att, q, kv, params, s);
  // Few tokens with few keys, as of drafts: each for itself, though those of a span read the same.
  constexpr int64_t kFewKeys = 8192;
  if (s.num_tokens <= 8 && s.max_context > 0 && int64_t{s.num_tokens} * s.max_context <= kFewKeys)
    return attend_rows(cx, att, q, kv, params, s, /*by_span=*/s.num_spans == s.num_tokens);
  // Spans of one token go by the other kernels.
  if (s.num_spans > 1 || s.num_tokens == 1)
    attend_rows(cx, att, q, kv, params, s, /*by_span=*/true);
  if (s.num_tokens == s.num_spans || attend_short_spans(cx, att, q, kv, params, s)) return;
  with_shape(kv, [&]<int kDim, bool kFp8>() {
    const TileParams a = tile_params(att, q, kv, params, s, Shape<kDim, 64>::kRows);
    constexpr int kMost = kDim == 64 ? 128 : kDim == 128 ? 96 : 64;  // keys of a tile
    if constexpr (kFp8 || kMost == 64)
      launch<kDim, 64, kFp8>(cx, a);
    else
      params.window > 0 ? launch<kDim, 64, false>(cx, a) : launch<kDim, kMost, false>(cx, a);
  });
}

}  // namespace nibble::ops::gpu
