// What the CUDA rows of attention for spans of several tokens share: flash attention over a tile of
// (token, head) rows. The query heads of a KV head share its keys, so the rows of a tile are some
// tokens of a span, all query heads of one KV head. Each warp has 16 kM rows; lane l: g = l / 4,
// p = l % 4, and of 16 rows m a lane holds rows g and g + 8 in the layout of an accumulator of mma
// m16n8k16 (and wgmma): element 4 j + i is row g + 8 (i / 2), column 8 j + 2 p + i % 2.
#pragma once

#include <algorithm>
#include <bit>
#include <cfloat>

#include "cuda/bf16.cuh"
#include "cuda/fp8.cuh"
#include "cuda/launch.cuh"
#include "ops/attention/attention_decode.h"

namespace nibble::ops::gpu {

namespace tiles {

inline constexpr int kDim = 64;
inline constexpr int kKeys = 64;                     // of a tile of keys
inline constexpr int kBlock = 16;                    // keys that surely lie in one page
inline constexpr int kTileBytes = kKeys * kDim * 2;  // of K, and of V
inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr unsigned kAll = 0xffffffff;

struct TileParams {
  uint16_t* att;
  const uint16_t* q;
  const void* k;  // bf16 or E4M3
  const void* v;
  const int32_t* page_table;
  const Span* spans;
  const uint16_t* sinks;
  int32_t num_spans, max_pages, page_shift, kv_heads, group, window, tile_tokens;
  float scale;  // of scores, in powers of two
};

// Rows of a tile: tokens first.. of a span, all query heads of a KV head.
struct Rows {
  Span span;
  int32_t first;      // token of the span
  int32_t num_rows;   // that are there
  int32_t key_begin;  // keys that any row sees: a multiple of kKeys
  int32_t key_end;
};

// The tile-th tile of the spans of several tokens, last tiles of the last span first; false where
// there are not so many. By a whole warp; `rows`, in shared memory, is written by one lane.
__device__ __forceinline__ bool find_rows(Rows& rows, const TileParams& a, int32_t tile) {
  const int lane = threadIdx.x % 32;
  for (int32_t last = a.num_spans - 1; last >= 0; last -= 32) {
    const int32_t i = last - lane;
    Span span = {};
    int32_t tiles = 0;
    if (i >= 0) {
      span = a.spans[i];
      if (span.q_len > 1) tiles = (span.q_len + a.tile_tokens - 1) / a.tile_tokens;
    }
    int32_t upto = tiles;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int32_t other = __shfl_up_sync(kAll, upto, step);
      if (lane >= step) upto += other;
    }
    const unsigned has = __ballot_sync(kAll, upto > tile);
    if (has == 0) {
      tile -= __shfl_sync(kAll, upto, 31);
      continue;
    }
    const int from = __ffs(has) - 1;
    Rows r;
    r.span = {__shfl_sync(kAll, span.q_start, from), __shfl_sync(kAll, span.q_len, from),
              __shfl_sync(kAll, span.context, from), __shfl_sync(kAll, span.slot, from)};
    const int32_t left = __shfl_sync(kAll, upto, from) - 1 - tile;  // tiles before it, in the span
    r.first = left * a.tile_tokens;
    const int32_t tokens = min(a.tile_tokens, r.span.q_len - r.first);
    r.num_rows = tokens * a.group;
    const int32_t pos = r.span.context + r.first;
    r.key_begin = a.window > 0 ? max(0, pos - a.window + 1) / kKeys * kKeys : 0;
    r.key_end = pos + tokens;
    if (lane == 0) rows = r;
    return true;
  }
  return false;
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

// Shared byte of 16-byte chunk `chunk` of row `row` in a tile of 128-byte rows.
__device__ __forceinline__ uint32_t swizzled(int row, int chunk) {
  return row * (kDim * 2) + ((chunk ^ (row & 7)) << 4);
}

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
        store_16(to, k[i]), store_16(to + kTileBytes, v[i]);
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

 private:
  static __device__ __forceinline__ void store_16(uint32_t to, uint2 codes) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(cuda::bf16_of_e4m3_lo(codes.x)), "r"(cuda::bf16_of_e4m3_hi(codes.x)),
                 "r"(cuda::bf16_of_e4m3_lo(codes.y)), "r"(cuda::bf16_of_e4m3_hi(codes.y))
                 : "memory");
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

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAll, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAll, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(kAll, x, 1);
  return x + __shfl_xor_sync(kAll, x, 2);
}

// Element 0 of a row's query; -1 for rows that are not there.
__device__ __forceinline__ int64_t row_at(const TileParams& a, const Rows& rows, int row,
                                          int32_t kv_head) {
  if (row >= rows.num_rows) return -1;
  const int32_t token = row / a.group, head = kv_head * a.group + row - token * a.group;
  return (int64_t{rows.span.q_start + rows.first + token} * a.kv_heads * a.group + head) * kDim;
}

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
      const int32_t ahead = first_pos + row / a.group - (key + 2 * (lane % 4));
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
      float by = 1 / sum;
      if (a.sinks != nullptr) {
        const int32_t head = kv_head * a.group + row % a.group;
        const float sink = cuda::bf16_value(a.sinks[head]) * kLog2e;
        const float top = fmaxf(s.top[m][half], sink), shrink = exp2_fast(s.top[m][half] - top);
        by = shrink / (sum * shrink + exp2_fast(sink - top));
      }
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

// For tiles of `rows` rows.
inline TileParams tile_params(const Tensor& att, const Tensor& q, const KvLayer& kv,
                              const AttentionParams& params, const Step& s, int32_t rows) {
  const auto kv_heads = static_cast<int32_t>(kv.k.dim(1));
  const auto group = static_cast<int32_t>(q.dim(1) / kDim / kv_heads);
  CHECK(kv.k.dtype == DType::kBF16 || kv.k.dtype == DType::kF8E4M3);
  CHECK(kv.page_size % kBlock == 0 && std::has_single_bit(static_cast<uint32_t>(kv.page_size)));
  return {.att = att.as<uint16_t>(),
          .q = q.as<uint16_t>(),
          .k = kv.k.data,
          .v = kv.v.data,
          .page_table = kv.page_table,
          .spans = s.spans,
          .sinks = params.sinks,
          .num_spans = s.num_spans,
          .max_pages = kv.max_pages,
          .page_shift = std::countr_zero(static_cast<uint32_t>(kv.page_size)),
          .kv_heads = kv_heads,
          .group = group,
          .window = params.window,
          .tile_tokens = rows / group,
          .scale = params.scale * kLog2e};
}

// Grid (G, tiles of rows), with the most tiles that there can be: every span's last tile may hold
// one token.
inline dim3 tile_grid(const TileParams& a, const Step& s) {
  return dim3(a.kv_heads, s.num_tokens / a.tile_tokens + std::min(s.num_spans, s.num_tokens / 2));
}

}  // namespace tiles
}  // namespace nibble::ops::gpu
