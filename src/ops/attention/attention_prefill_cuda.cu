// attention on a GPU for spans of several tokens (prefill), by mma.sync.
//   q       [T, Q * D] bf16, in      att [T, Q * D] bf16, out
//   k, v    [pages, G, P, D] bf16 or E4M3, in, P a power of two, P % 16 == 0; page_table [slots,
//   max_pages] i32 sinks   [Q] bf16 or none, in     D = 64, Q / G <= 8
// Operations: 4 D Q for each key that a token sees: at 8,192 tokens of gpt-oss-120b 0.55 T in a
// full layer, 0.7 ms at the 790 TFLOP/s that an H200's dense products reach; 17 G in a window
// layer. Idea: flash attention over a tile of (token, head) rows: the query heads of a KV head
// share its keys, so a tile of 128 rows is 16 tokens of 8 heads, and a warp's 32 rows use each
// fragment of K and V twice. Tiles of 64 keys come through shared memory, three stages of cp.async,
// swizzled for ldmatrix; scores become weights in registers, where the layout of an accumulator is
// that of the next operand. Tiles that see most keys start first. Sums depend on how a prompt is
// cut into chunks.
// Reached on one H200, 2026-11-21: 288 TFLOP/s at 8,192 tokens, 243 at 2,048, 104 at 512.
#include "cuda/mma_bf16.cuh"
#include "ops/attention/attention_tiles.cuh"

namespace nibble::ops::gpu {
namespace {

using namespace tiles;  // NOLINT
using nibble::cuda::mma_bf16;
using nibble::cuda::pack_bf16;

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kM = 2;
constexpr int kRows = kWarps * 16 * kM;  // (token, head) pairs of a tile
constexpr int kStages = 3;
constexpr int kKeys = 64;                     // of a tile of keys
constexpr int kTileBytes = kKeys * kDim * 2;  // of K, and of V
constexpr int kSmemBytes = kStages * 2 * kTileBytes;

// Brings tiles of keys and values, as bf16, to shared memory; by kThreads threads, each some rows'
// chunks of 8 dims. bf16 pages are copied behind the threads' backs, E4M3 pages pass through them.
template <int kThreads, bool kFp8>
struct Copier {
  static constexpr int kStep = kThreads / 8;  // rows that the threads bring at once
  static_assert(kStep % kBlock == 0 && kKeys % kStep == 0);
  const int32_t* table;
  int32_t kv_head, oldest;

  // K, then V, to `stage`. Zeros where no row of the tile sees a key, which may be anything there.
  __device__ __forceinline__ void copy(const TileParams& a, uint32_t stage, int32_t key,
                                       int32_t key_end) const {
    const int chunk = threadIdx.x % 8, row = threadIdx.x / 8;
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
        const uint32_t to = stage + swizzled(i * kStep + row, chunk);
        store_as_bf16(to, k[i]), store_as_bf16(to + kTileBytes, v[i]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kKeys / kStep; ++i) {
        const bool is_there = at[i] >= 0;
        const int64_t from = int64_t{max(at[i], 0)} * kDim + chunk * 8;
        const uint32_t to = stage + swizzled(i * kStep + row, chunk);
        copy_16(to, static_cast<const uint16_t*>(a.k) + from, is_there);
        copy_16(to + kTileBytes, static_cast<const uint16_t*>(a.v) + from, is_there);
      }
    }
  }
};

// What a warp keeps of its 16 kM rows.
template <int kM>
struct State {
  uint32_t q[kM][kDim / 16][4];  // operand of 16 rows and 16 dims
  float o[kM][kDim / 2];
  float top[kM][2], sum[kM][2];  // rows g, g + 8
};
template <int kM>
using Scores = float[kM][kKeys / 2];

template <int kM>
__device__ __forceinline__ void start(State<kM>& s, const TileParams& a, const Rows& rows,
                                      int32_t kv_head) {
  const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = threadIdx.x / 32 * (16 * kM) + 16 * m + 8 * half + g;
      const int64_t at = row_at(a, rows, row, kv_head);
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
template <int kM>
__device__ __forceinline__ void mask(Scores<kM>& s, const TileParams& a, int32_t first_pos,
                                     int32_t key) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = threadIdx.x / 32 * (16 * kM) + 16 * m + 8 * half + lane / 4;
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
template <int kM>
__device__ __forceinline__ void weigh(Scores<kM>& s, State<kM>& state, float scale) {
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

template <int kM>
__device__ __forceinline__ void store(const State<kM>& s, const TileParams& a, const Rows& rows,
                                      int32_t kv_head) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = threadIdx.x / 32 * (16 * kM) + 16 * m + 8 * half + lane / 4;
      const int64_t at = row_at(a, rows, row, kv_head);
      const float sum = quad_sum(s.sum[m][half]);
      if (at < 0) continue;
      const float by = share_of(a, kv_head, row, s.top[m][half], sum);
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j)
        reinterpret_cast<uint32_t*>(a.att + at + 8 * j)[lane % 4] =
            cuda::pack_bf16(s.o[m][4 * j + 2 * half] * by, s.o[m][4 * j + 2 * half + 1] * by);
    }
}

// Whether all rows of a tile see all of its keys from `key` on.
__device__ __forceinline__ bool all_seen(const TileParams& a, const Rows& rows, int32_t key) {
  return key + kKeys - 1 <= rows.span.context + rows.first &&
         (a.window == 0 || rows.key_end - 1 - key < a.window);
}

// Scores of a tile of keys in shared memory at `keys`.
__device__ __forceinline__ void score(Scores<kM>& s, const State<kM>& state, uint32_t keys) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < kKeys / 8; ++j) {
    uint32_t k[2][4];  // chunks 0..3, 4..7 of 8 keys
#pragma unroll
    for (int i = 0; i < 2; ++i)
      cuda::load_matrices(k[i], keys + swizzled(8 * j + lane % 8, 4 * i + lane / 8));
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      float d[4] = {};
#pragma unroll
      for (int step = 0; step < kDim / 16; ++step) {
        const uint32_t(&q)[4] = state.q[m][step];
        mma_bf16(d, q[0], q[1], q[2], q[3], k[step / 2][step % 2 * 2],
                 k[step / 2][step % 2 * 2 + 1]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) s[m][4 * j + i] = d[i];
    }
  }
}

// o += weights times the tile of values in shared memory at `values`.
__device__ __forceinline__ void add_values(State<kM>& state, const Scores<kM>& s, uint32_t values) {
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
          v, values + swizzled(16 * step + lane % 16, 2 * pair + lane / 16));
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

// Grid (G, tiles of rows).
template <bool kFp8>
__global__ void __launch_bounds__(kThreads, 2) attend_tiles(const __grid_constant__ TileParams a) {
  extern __shared__ __align__(1024) uint8_t stages[];
  __shared__ Rows rows;  // there, it takes no registers
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(stages));
  const int32_t kv_head = blockIdx.x;
  if (threadIdx.x < 32) {
    const TiledSpan span = find_span(a, blockIdx.y);
    if (threadIdx.x == 0) rows = rows_of(a, span, blockIdx.y);
  }
  __syncthreads();
  if (rows.num_rows == 0) return cuda::griddep_wait();
  const int32_t first_pos = rows.span.context + rows.first;
  const Copier<kThreads, kFp8> copier{
      .table = a.page_table + int64_t{rows.span.slot} * a.max_pages,
      .kv_head = kv_head,
      .oldest = a.window > 0 ? max(0, first_pos - a.window + 1) : 0};
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const auto fetch = [&](int stage, int32_t key) {
    if (key < rows.key_end) copier.copy(a, shared + stage * 2 * kTileBytes, key, rows.key_end);
    commit_copies();  // empty past the end, so that groups count tiles
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) fetch(i, rows.key_begin + i * kKeys);
  State<kM> state;
  start(state, a, rows, kv_head);
  int stage = 0;
  for (int32_t key = rows.key_begin; key < rows.key_end; key += kKeys) {
    wait_copies<kStages - 2>();
    __syncthreads();  // the tile is there, and the stage before is free
    fetch(stage == 0 ? kStages - 1 : stage - 1, key + (kStages - 1) * kKeys);
    const uint32_t keys = shared + stage * 2 * kTileBytes;
    Scores<kM> s;
    score(s, state, keys);
    if (!all_seen(a, rows, key)) mask(s, a, first_pos, key);
    weigh(s, state, a.scale);
    add_values(state, s, keys + kTileBytes);
    if (++stage == kStages) stage = 0;
  }
  store(state, a, rows, kv_head);
}

}  // namespace

void attend_spans(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
                  const AttentionParams& params, const Step& s) {
  // Spans of one token go by the other kernel.
  if (s.num_spans > 1 || s.num_tokens == 1)
    attend_rows(cx, att, q, kv, params, s, /*by_span=*/true);
  if (s.num_tokens == s.num_spans) return;
  const TileParams a = tile_params(att, q, kv, params, s, kRows);
  const auto kernel = kv.k.dtype == DType::kF8E4M3 ? attend_tiles<true> : attend_tiles<false>;
  cuda::launch(cx.stream, kernel,
               {.grid = tile_grid(a, s),
                .block = dim3(kThreads),
                .smem_bytes = kSmemBytes,
                .release = cuda::Release::kAfterWait,
                .reads_inputs = true},
               a);
}

}  // namespace nibble::ops::gpu
