// attention on a GPU for spans of several tokens (prefill, and drafts that are verified), by
// mma.sync.
//   q       [T, Q * D] bf16, in      att [T, Q * D] bf16, out
//   k, v    [pages, G, P, D] bf16 or E4M3, in, P a power of two, P % 16 == 0
//   page_table [slots, max_pages] i32, in      sinks [Q] bf16 or none, in
// Needs D = 64, 128 or 256, Q / G <= 16.
// Operations: 4 D Q for each key that a token sees: at 8,192 tokens of gpt-oss-120b 0.55 T in a
// full layer, 0.7 ms at the 790 TFLOP/s that an H200's dense products reach; 17 G in a window
// layer. Bytes of a short span: those of attention_decode_cuda.cu, once for all its tokens.
//
// Idea: flash attention over a tile of (token, head) rows: the query heads of a KV head share its
// keys, so a tile of 128 rows is 16 tokens of 8 heads, and a warp's 32 rows (64 dims) use each
// fragment of K and V twice. Tiles of 64 keys (256 dims: 32) come through shared memory, three
// stages of cp.async, swizzled for ldmatrix; scores become weights in registers, where the layout
// of an accumulator is that of the next operand. Tiles that see most keys start first. Spans so few
// that they would leave SMs idle have their keys split among blocks, and among the warps of one
// that have no rows of their own; a second kernel puts the parts together. Sums depend on how a
// prompt is cut into chunks.
// Reached on one H200, 2026-11-23, 4,096 query columns, TFLOP/s at 8,192 tokens: 64 dims 288, 128
// dims 262, 256 dims 250.
#include "cuda/mma_bf16.cuh"
#include "ops/attention/attention_merge.cuh"
#include "ops/attention/attention_scratch.h"
#include "ops/attention/attention_tiles.cuh"

namespace nibble::ops::gpu {
namespace {

using namespace tiles;  // NOLINT
using nibble::cuda::mma_bf16;
using nibble::cuda::pack_bf16;

constexpr int kFewestKeys = 128;  // of a split

// A tile of (token, head) rows, and how keys come. kSplit: of short spans, few rows for many keys.
template <int kDim, bool kSplit>
struct Shape {
  static constexpr int kWarps = kDim == 64 ? 4 : 8;
  static constexpr int kM = kDim == 64 && !kSplit ? 2 : 1;  // times 16 rows of a warp
  static constexpr int kThreads = kWarps * 32, kRows = kWarps * 16 * kM;
  static constexpr int kKeys = kDim == 256 ? 32 : 64;                // of a tile of keys
  static constexpr int kSlice = kSplit || kDim == 256 ? 16 : kKeys;  // that a warp takes at a time
  static constexpr int kTileBytes = kKeys * kDim * 2;                // of K, and of V
  static constexpr int kStages = 3;
  static constexpr int kBytes = kStages * 2 * kTileBytes;
  static constexpr int kBlocksPerSm = kDim == 64 ? 2 : 1;
};

// Brings tiles of keys and values, as bf16, to shared memory; by all threads, each some rows'
// chunks of 8 dims. bf16 pages are copied behind the threads' backs, E4M3 pages pass through them.
template <int kDim, typename Shape, bool kFp8>
struct Copier {
  static constexpr int kChunks = kDim / 8, kKeys = Shape::kKeys, kTileBytes = Shape::kTileBytes;
  static constexpr int kStep = Shape::kThreads / kChunks;  // rows that the threads bring at once
  static_assert(kKeys % kStep == 0);
  const int32_t* table;
  int32_t kv_head, oldest;

  // K, then V, to `stage`. Zeros where no row of the tile sees a key, which may be anything there.
  __device__ __forceinline__ void copy(const TileParams& a, uint32_t stage, int32_t key,
                                       int32_t key_end) const {
    const int chunk = threadIdx.x % kChunks, row = threadIdx.x / kChunks;
    // Rows of the pages: fewer than 2^31 in any memory.
    int32_t at[kKeys / kStep];
#pragma unroll
    for (int i = 0; i < kKeys / kStep; ++i) {
      const int32_t pos = key + i * kStep + row;
      at[i] = -1;
      if (pos >= key_end || pos / kBlock * kBlock + kBlock <= oldest) continue;
      at[i] = ((table[pos >> a.page_shift] * a.kv_heads + kv_head) << a.page_shift) +
              (pos & ((1 << a.page_shift) - 1));
    }
    if constexpr (kFp8) {
      uint2 k[kKeys / kStep] = {}, v[kKeys / kStep] = {};
#pragma unroll
      for (int i = 0; i < kKeys / kStep; ++i) {
        if (at[i] < 0) continue;
        const int64_t from = int64_t{at[i]} * kDim + chunk * 8;
        k[i] = cuda::load8(static_cast<const uint8_t*>(a.k) + from);
        v[i] = cuda::load8(static_cast<const uint8_t*>(a.v) + from);
      }
#pragma unroll
      for (int i = 0; i < kKeys / kStep; ++i) {
        const uint32_t to = stage + tile_byte<kKeys>(i * kStep + row, chunk);
        store_as_bf16(to, k[i]), store_as_bf16(to + kTileBytes, v[i]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kKeys / kStep; ++i) {
        const bool is_there = at[i] >= 0;
        const int64_t from = int64_t{max(at[i], 0)} * kDim + chunk * 8;
        const uint32_t to = stage + tile_byte<kKeys>(i * kStep + row, chunk);
        copy_16(to, static_cast<const uint16_t*>(a.k) + from, is_there);
        copy_16(to + kTileBytes, static_cast<const uint16_t*>(a.v) + from, is_there);
      }
    }
  }
};

// What a warp keeps of its 16 kM rows.
template <int kDim, int kM>
struct State {
  uint32_t q[kM][kDim / 16][4];  // operand of 16 rows and 16 dims
  float o[kM][kDim / 2];
  float top[kM][2], sum[kM][2];  // rows g, g + 8
};
template <int kM, int kKeys>
using Scores = float[kM][kKeys / 2];

template <int kDim, int kM>
__device__ __forceinline__ void start(State<kDim, kM>& s, const TileParams& a, const Rows& rows,
                                      int32_t kv_head, int first_row) {
  const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + 16 * m + 8 * half + g;
      const int64_t at = int64_t{row_at(a, rows, row, kv_head)} * kDim;
      s.top[m][half] = -FLT_MAX, s.sum[m][half] = 0;
#pragma unroll
      for (int step = 0; step < kDim / 16; ++step)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const auto* from = reinterpret_cast<const uint32_t*>(a.q + at + 16 * step + 8 * i) + p;
          s.q[m][step][2 * i + half] = at < 0 ? 0 : *from;
        }
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j)
        s.o[m][4 * j + 2 * half] = s.o[m][4 * j + 2 * half + 1] = 0;
    }
}

// Takes keys out that a row does not see. Rows that are not there see what they like.
template <int kM, int kKeys>
__device__ __forceinline__ void mask(Scores<kM, kKeys>& s, const TileParams& a, int first_row,
                                     int32_t first_pos, int32_t key) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + 16 * m + 8 * half + lane / 4;
      const int32_t ahead = first_pos + token_of(a, row) - (key + 2 * (lane % 4));
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int32_t behind = ahead - (8 * j + i);
          if (behind < 0 || (a.window > 0 && behind >= a.window))
            s[m][4 * j + 2 * half + i] = -INFINITY;
        }
    }
}

// Scores become weights; what is summed so far shrinks where a larger score has come, which happens
// in few tiles but the first.
template <int kDim, int kM, int kKeys>
__device__ __forceinline__ void weigh(Scores<kM, kKeys>& s, State<kDim, kM>& state, float scale) {
  float shrink[kM][2];
  bool has_grown = false;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = s[m][2 * half];
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
        top = fmaxf(top, fmaxf(s[m][4 * j + 2 * half], s[m][4 * j + 2 * half + 1]));
      top = fmaxf(state.top[m][half], quad_max(top) * scale);
      has_grown = has_grown || top > state.top[m][half];
      shrink[m][half] = exp2_fast(state.top[m][half] - top);
      state.top[m][half] = top;
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i)
          sum += s[m][4 * j + i] = exp2_fast(fmaf(s[m][4 * j + i], scale, -top));
      state.sum[m][half] = state.sum[m][half] * shrink[m][half] + sum;
    }
  if (!__any_sync(kAll, has_grown)) return;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) state.o[m][i] *= shrink[m][i / 2 % 2];
}

// To att; or, of keys that are split, to the part of the block's split.
template <bool kSplit, int kDim, int kM>
__device__ __forceinline__ void store(const State<kDim, kM>& s, const TileParams& a,
                                      const Rows& rows, int32_t kv_head, int first_row) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + 16 * m + 8 * half + lane / 4;
      const int64_t at = row_at(a, rows, row, kv_head);
      const float sum = quad_sum(s.sum[m][half]);
      if (at < 0) continue;
      if constexpr (kSplit) {
        const int64_t part = at * a.splits + blockIdx.z;
        if (lane % 4 == 0) a.part_sums[part] = {s.top[m][half], sum};
#pragma unroll
        for (int j = 0; j < kDim / 8; ++j)
          reinterpret_cast<float2*>(a.parts + part * kDim + 8 * j)[lane % 4] = {
              s.o[m][4 * j + 2 * half], s.o[m][4 * j + 2 * half + 1]};
      } else {
        const float by = share_of(a, kv_head, row, s.top[m][half], sum);
#pragma unroll
        for (int j = 0; j < kDim / 8; ++j)
          reinterpret_cast<uint32_t*>(a.att + at * kDim + 8 * j)[lane % 4] =
              pack_bf16(s.o[m][4 * j + 2 * half] * by, s.o[m][4 * j + 2 * half + 1] * by);
      }
    }
}

// Whether all rows of a tile see all of its keys from `key` on.
template <int kKeys>
__device__ __forceinline__ bool all_seen(const TileParams& a, const Rows& rows, int32_t key) {
  return key + kKeys - 1 <= rows.span.context + rows.first &&
         (a.window == 0 || rows.key_end - 1 - key < a.window);
}

// Scores of keys of a tile in shared memory, from `keys` on.
template <int kDim, int kTileKeys, int kM, int kKeys>
__device__ __forceinline__ void score(Scores<kM, kKeys>& s, const State<kDim, kM>& state,
                                      uint32_t keys) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < kKeys / 8; ++j) {
    float d[kM][4] = {};
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) {
      uint32_t k[4];  // chunks 4i.. of 8 keys
      cuda::load_matrices(k, keys + tile_byte<kTileKeys>(8 * j + lane % 8, 4 * i + lane / 8));
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          const uint32_t(&q)[4] = state.q[m][2 * i + step];
          mma_bf16(d[m], q[0], q[1], q[2], q[3], k[2 * step], k[2 * step + 1]);
        }
    }
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[m][4 * j + i] = d[m][i];
  }
}

// o += weights times values of a tile in shared memory, from `values` on.
template <int kDim, int kTileKeys, int kM, int kKeys>
__device__ __forceinline__ void add_values(State<kDim, kM>& state, const Scores<kM, kKeys>& s,
                                           uint32_t values) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step) {
    uint32_t w[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* from = s[m] + 4 * (2 * step + i / 2) + 2 * (i % 2);
        w[m][i] = pack_bf16(from[0], from[1]);
      }
#pragma unroll
    for (int pair = 0; pair < kDim / 16; ++pair) {
      uint32_t v[4];  // keys 0..7 and 8..15 of dims 16 pair.., the same of 16 pair + 8..
      cuda::load_matrices_transposed(
          v, values + tile_byte<kTileKeys>(16 * step + lane % 16, 2 * pair + lane / 16));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        float* o = state.o[m] + 8 * pair;
        mma_bf16(reinterpret_cast<float(&)[4]>(o[0]), w[m][0], w[m][1], w[m][2], w[m][3], v[0],
                 v[1]);
        mma_bf16(reinterpret_cast<float(&)[4]>(o[4]), w[m][0], w[m][1], w[m][2], w[m][3], v[2],
                 v[3]);
      }
    }
  }
}

// Leaves to `rows` the keys of the split-th of a.splits.
template <int kKeys>
__device__ __forceinline__ void cut(Rows& rows, const TileParams& a, int32_t split) {
  const int32_t tiles = (rows.key_end - rows.key_begin + kKeys - 1) / kKeys;
  const int32_t keys = (tiles + a.splits - 1) / a.splits * kKeys;
  rows.key_begin = min(rows.key_begin + split * keys, rows.key_end);
  rows.key_end = min(rows.key_begin + keys, rows.key_end);
}

// How the warps of a block share a tile of rows and a tile of keys: where rows are few, several
// take slices of the keys for the same rows.
template <typename Tiles>
struct Crew {
  static constexpr int kWarpRows = 16 * Tiles::kM, kSlices = Tiles::kKeys / Tiles::kSlice;
  int shift = 0;  // 2^shift key groups
  __device__ __forceinline__ explicit Crew(int num_rows) {
    const int row_groups = (num_rows + kWarpRows - 1) / kWarpRows;
    while ((2 << shift) * row_groups <= Tiles::kWarps && (2 << shift) <= kSlices) ++shift;
  }
  // Of this warp; from its number whenever asked, rather than kept in registers.
  __device__ __forceinline__ int key_groups() const { return 1 << shift; }
  __device__ __forceinline__ int key_group() const { return threadIdx.x / 32 % key_groups(); }
  __device__ __forceinline__ int first_row() const {
    return static_cast<int>(threadIdx.x / 32 >> shift) * kWarpRows;
  }
};

// Adds up what the key groups of the same rows have, in the first of them. By all threads, behind
// their last use of `memory`: of a lane's floats one lies 32 behind the other.
template <typename Tiles, int kDim>
__device__ __forceinline__ void join(State<kDim, 1>& state, const Crew<Tiles>& crew,
                                     float* memory) {
  constexpr int kTopAt = kDim / 2, kSumAt = kTopAt + 2, kFloats = kSumAt + 2;
  if (crew.key_groups() == 1) return;
  __syncthreads();
  const int lane = threadIdx.x % 32, rows = crew.first_row() / 16;
  const auto of = [&](int group) {
    return memory + (rows * (crew.key_groups() - 1) + group - 1) * (kFloats * 32) + lane;
  };
  if (crew.key_group() > 0) {
    float* to = of(crew.key_group());
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) to[32 * i] = state.o[0][i];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      to[32 * (kTopAt + half)] = state.top[0][half], to[32 * (kSumAt + half)] = state.sum[0][half];
  }
  __syncthreads();
  if (crew.key_group() > 0) return;
#pragma unroll 1
  for (int group = 1; group < crew.key_groups(); ++group) {
    const float* from = of(group);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float &top = state.top[0][half], &sum = state.sum[0][half];
      const float other = from[32 * (kTopAt + half)], most = fmaxf(top, other);
      const float mine = exp2_fast(top - most), theirs = exp2_fast(other - most);
      top = most;
      sum = sum * mine + from[32 * (kSumAt + half)] * theirs;
#pragma unroll
      for (int i = 2 * half; i < kDim / 2; i += 4) {
        state.o[0][i] = state.o[0][i] * mine + from[32 * i] * theirs;
        state.o[0][i + 1] = state.o[0][i + 1] * mine + from[32 * (i + 1)] * theirs;
      }
    }
  }
}

// Grid (G, tiles of rows, splits).
template <int kDim, bool kFp8, bool kSplit>
__global__ void __launch_bounds__(Shape<kDim, kSplit>::kThreads, Shape<kDim, kSplit>::kBlocksPerSm)
    attend_tiles(const __grid_constant__ TileParams a) {
  using Tiles = Shape<kDim, kSplit>;
  constexpr int kM = Tiles::kM, kKeys = Tiles::kKeys, kSlice = Tiles::kSlice;
  constexpr int kStages = Tiles::kStages;
  extern __shared__ __align__(1024) uint8_t stages[];
  __shared__ Rows rows;  // there, it takes no registers
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(stages));
  const int32_t kv_head = blockIdx.x;
  if (threadIdx.x < 32) {
    const TiledSpan span = find_span(a, blockIdx.y);
    if (threadIdx.x == 0) {
      rows = rows_of(a, span, blockIdx.y);
      if (kSplit) cut<kKeys>(rows, a, blockIdx.z);
    }
  }
  __syncthreads();
  if (rows.num_rows == 0) return cuda::griddep_wait();
  const auto first_pos = [&] { return rows.span.context + rows.first; };  // not in a register
  const Copier<kDim, Tiles, kFp8> copier{
      .table = a.page_table + int64_t{rows.span.slot} * a.max_pages,
      .kv_head = kv_head,
      .oldest = a.window > 0 ? max(0, first_pos() - a.window + 1) : 0};
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const auto fetch = [&](int stage, int32_t key) {
    if (key < rows.key_end)
      copier.copy(a, shared + stage * 2 * Tiles::kTileBytes, key, rows.key_end);
    commit_copies();  // empty past the end, so that groups count tiles
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) fetch(i, rows.key_begin + i * kKeys);
  const Crew<Tiles> crew(kSplit ? rows.num_rows : Tiles::kRows);
  State<kDim, kM> state;
  start(state, a, rows, kv_head, crew.first_row());
  int stage = 0;
  for (int32_t key = rows.key_begin; key < rows.key_end; key += kKeys) {
    wait_copies<kStages - 2>();
    __syncthreads();  // the tile is there, and the stage before is free
    fetch(stage == 0 ? kStages - 1 : stage - 1, key + (kStages - 1) * kKeys);
    const uint32_t keys = shared + stage * 2 * Tiles::kTileBytes;
    if (++stage == kStages) stage = 0;
    if (crew.first_row() >= rows.num_rows) continue;
#pragma unroll 1
    for (int at = crew.key_group() * kSlice; at < kKeys; at += crew.key_groups() * kSlice) {
      Scores<kM, kSlice> s;
      score<kDim, kKeys, kM, kSlice>(s, state, keys + at * kRowBytes);
      if (kSplit || !all_seen<kSlice>(a, rows, key + at))
        mask<kM, kSlice>(s, a, crew.first_row(), first_pos(), key + at);
      weigh<kDim, kM, kSlice>(s, state, a.scale);
      add_values<kDim, kKeys, kM, kSlice>(state, s, keys + Tiles::kTileBytes + at * kRowBytes);
    }
  }
  if constexpr (kSplit) {
    join(state, crew, reinterpret_cast<float*>(stages));
    if (crew.key_group() > 0) return;
  }
  store<kSplit>(state, a, rows, kv_head, crew.first_row());
}

template <int kDim, bool kFp8, bool kSplit>
void launch(Ctx& cx, TileParams a, const Step& s) {
  using Tiles = Shape<kDim, kSplit>;
  dim3 grid = tile_grid(a, s);
  grid.z = a.splits;
  cuda::launch(cx.stream, attend_tiles<kDim, kFp8, kSplit>,
               {.grid = grid,
                .block = dim3(Tiles::kThreads),
                .smem_bytes = Tiles::kBytes,
                .release = cuda::Release::kAfterWait,
                .reads_inputs = true},
               a);
  if (!kSplit) return;
  grid.z = kMergePieces;
  cuda::launch(cx.stream, merge_parts<kDim>,
               {.grid = grid, .block = dim3(kMergeWarps * 32), .reads_inputs = true}, a);
}

}  // namespace

bool attend_short_spans(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
                        const AttentionParams& params, const Step& s) {
  bool is_done = false;
  with_shape(kv, [&]<int kDim, bool kFp8>() {
    using Tiles = Shape<kDim, true>;
    TileParams a = tile_params(att, q, kv, params, s, Tiles::kRows);
    // As if spans were all as long.
    const int32_t tokens = (s.num_tokens + s.num_spans - 1) / s.num_spans;
    const int64_t blocks =
        int64_t{a.kv_heads} * s.num_spans * ((tokens + a.tile_tokens - 1) / a.tile_tokens);
    const int64_t room = Tiles::kBlocksPerSm * cx.kernels.gpu.num_sms / blocks;
    const int64_t most =
        std::min<int64_t>(AttentionScratch::kMaxSplits, AttentionScratch::kParts / s.num_tokens);
    const int32_t longest = kv.max_pages * kv.page_size;
    const int32_t context = s.max_context > 0 ? std::min(s.max_context, longest) : longest;
    const int32_t keys = params.window > 0 ? std::min(context, params.window) : context;
    a.splits = static_cast<int32_t>(std::min({room, most, int64_t{keys / kFewestKeys}}));
    if (a.splits < 2) return;
    const AttentionScratch scratch(Scratch(cx.scratch), s.num_tokens,
                                   a.kv_heads * ((a.group + 7) / 8), kDim);
    a.parts = scratch.parts;
    a.part_sums = reinterpret_cast<float2*>(scratch.part_sums);
    launch<kDim, kFp8, true>(cx, a, s);
    is_done = true;
  });
  return is_done;
}

void attend_spans(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
                  const AttentionParams& params, const Step& s) {
  // Spans of one token go by the other kernels.
  if (s.num_spans > 1 || s.num_tokens == 1)
    attend_rows(cx, att, q, kv, params, s, /*by_span=*/true);
  if (s.num_tokens == s.num_spans || attend_short_spans(cx, att, q, kv, params, s)) return;
  with_shape(kv, [&]<int kDim, bool kFp8>() {
    const TileParams a = tile_params(att, q, kv, params, s, Shape<kDim, false>::kRows);
    launch<kDim, kFp8, false>(cx, a, s);
  });
}

}  // namespace nibble::ops::gpu
