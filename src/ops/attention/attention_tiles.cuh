// What the CUDA rows of attention for spans of several tokens share: flash attention over a tile of
// (token, head) rows. The query heads of a KV head share its keys, so the rows of a tile are some
// tokens of a span, all query heads of one KV head. Of 16 rows lane l, g = l / 4, p = l % 4, holds
// rows g and g + 8 in the layout of an accumulator of mma m16n8k16 (and wgmma): element 4 j + i is
// row g + 8 (i / 2), column 8 j + 2 p + i % 2.
#pragma once

#include <algorithm>
#include <cfloat>

#include "cuda/bf16.cuh"
#include "cuda/fp8.cuh"
#include "cuda/launch.cuh"
#include "ops/attention/attention_arguments.cuh"
#include "ops/attention/attention_decode.h"

namespace nibble::ops::gpu {

namespace tiles {

using namespace attention_kernel;  // NOLINT

inline constexpr int kBlock = kPageKeys;

struct TileParams : Arguments {
  // Of keys split among blocks (of a span, at most): what each leaves of a row. [T, Q, splits, D]
  float* parts = nullptr;
  float2* part_sums = nullptr;  // [T, Q, splits]: largest score, sum of weights
  int32_t splits = 1;
  int32_t tile_tokens = 0;
  int32_t tokens_per_row = 0;  // in 2^-16, rounded up: rows are fewer than 256
  uint32_t seen = 0;           // keys that a token sees at most, itself among them
};

// Rows of a tile: tokens first.. of a span, all query heads of a KV head.
struct Rows {
  Span span;
  int32_t first;      // token of the span
  int32_t num_rows;   // that are there
  int32_t key_begin;  // keys that any row sees, from a multiple of kBlock on
  int32_t key_end;
};

// A span and its tiles, first_tile.., numbered from its last to its first.
struct TiledSpan {
  Span span;
  int32_t first_tile, num_tiles;
  __device__ __forceinline__ bool has(int32_t tile) const { return tile < first_tile + num_tiles; }
};

// Where the tile-th tile of the spans of several tokens is, last span first; of no tiles where
// there are not so many. By a whole warp.
__device__ __forceinline__ TiledSpan find_span(const TileParams& a, int32_t tile) {
  const int lane = threadIdx.x % 32;
  int32_t before = 0;
  for (int32_t last = a.num_spans - 1; last >= 0; last -= 32) {
    const int32_t i = last - lane;
    Span span = {};
    int32_t tiles = 0;
    if (i >= 0) {
      span = a.spans[i];
      if (span.q_len > 1) tiles = (span.q_len + a.tile_tokens - 1) / a.tile_tokens;
    }
    int32_t upto = before + tiles;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int32_t other = __shfl_up_sync(kAll, upto, step);
      if (lane >= step) upto += other - before;
    }
    const unsigned has = __ballot_sync(kAll, upto > tile);
    if (has == 0) {
      before = __shfl_sync(kAll, upto, 31);
      continue;
    }
    const int from = __ffs(has) - 1;
    return {{__shfl_sync(kAll, span.q_start, from), __shfl_sync(kAll, span.q_len, from),
             __shfl_sync(kAll, span.context, from), __shfl_sync(kAll, span.slot, from)},
            __shfl_sync(kAll, upto - tiles, from),
            __shfl_sync(kAll, tiles, from)};
  }
  return {};
}

__device__ __forceinline__ Rows rows_of(const TileParams& a, const TiledSpan& s, int32_t tile) {
  Rows r;
  r.span = s.span;
  r.first = (s.first_tile + s.num_tiles - 1 - tile) * a.tile_tokens;
  const int32_t tokens = min(a.tile_tokens, s.span.q_len - r.first);
  r.num_rows = s.num_tiles > 0 ? tokens * a.group : 0;
  const int32_t pos = s.span.context + r.first;
  r.key_begin = a.window > 0 ? max(0, pos - a.window + 1) / kBlock * kBlock : 0;
  r.key_end = pos + tokens;
  return r;
}

__device__ __forceinline__ void copy_16(uint32_t to, const void* from, bool is_there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(is_there ? 16 : 0)
               : "memory");  // zeros where not
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kLeft>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// Shared byte of 16-byte chunk `chunk` of row `row` in a panel, that is 64 dims of some rows. A
// tile's panels lie behind each other.
inline constexpr int kRowBytes = 128;
__device__ __forceinline__ uint32_t swizzled(int row, int chunk) {
  return row * kRowBytes + ((chunk ^ (row & 7)) << 4);
}
// The same of any chunk of a tile of kRows rows.
template <int kRows>
__device__ __forceinline__ uint32_t tile_byte(int row, int chunk) {
  return chunk / 8 * (kRows * kRowBytes) + swizzled(row, chunk % 8);
}

// Eight values of E4M3 as bf16.
__device__ __forceinline__ void store_as_bf16(uint32_t to, uint2 codes) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(cuda::bf16_of_e4m3_lo(codes.x)), "r"(cuda::bf16_of_e4m3_hi(codes.x)),
               "r"(cuda::bf16_of_e4m3_lo(codes.y)), "r"(cuda::bf16_of_e4m3_hi(codes.y))
               : "memory");
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAll, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAll, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(kAll, x, 1);
  return x + __shfl_xor_sync(kAll, x, 2);
}

// The token of a tile that a row is of.
__device__ __forceinline__ int32_t token_of(const TileParams& a, int row) {
  return row * a.tokens_per_row >> 16;
}

// Which of all tokens' query heads a row is, in order; -1 for rows that are not there.
__device__ __forceinline__ int32_t row_at(const TileParams& a, const Rows& rows, int row,
                                          int32_t kv_head) {
  if (row >= rows.num_rows) return -1;
  const int32_t token = token_of(a, row), head = kv_head * a.group + row - token * a.group;
  const int32_t first = rows.span.q_start + rows.first;
  return (first + token) * (a.kv_heads * a.group) + head;
}

// What a row's sum of values is multiplied by: one over the sum of weights, the sink's among them.
__device__ __forceinline__ float share_of(const TileParams& a, int32_t kv_head, int row, float top,
                                          float sum) {
  if (a.sinks == nullptr) return a.v_scale / sum;
  const int32_t head = kv_head * a.group + row - token_of(a, row) * a.group;
  const float sink = cuda::bf16_value(a.sinks[head]) * kLog2e;
  const float larger = fmaxf(top, sink), shrink = exp2_fast(top - larger);
  return shrink * a.v_scale / (sum * shrink + exp2_fast(sink - larger));
}

// For tiles of `rows` rows.
inline TileParams tile_params(const Tensor& att, const Tensor& q, const KvLayer& kv,
                              const AttentionParams& params, const Step& s, int32_t rows) {
  TileParams a{arguments(att, q, kv, params, s)};
  a.tile_tokens = rows / a.group;
  a.tokens_per_row = (1 << 16) / a.group + 1;
  a.seen = a.window > 0 ? static_cast<uint32_t>(a.window) : uint32_t{INT32_MAX};
  return a;
}

// Grid (G, tiles of rows), with the most tiles that there can be: every span's last tile may hold
// one token.
inline dim3 tile_grid(const TileParams& a, const Step& s) {
  return dim3(a.kv_heads, s.num_tokens / a.tile_tokens + std::min(s.num_spans, s.num_tokens / 2));
}

}  // namespace tiles
}  // namespace nibble::ops::gpu
