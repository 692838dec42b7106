// The attention tile over a vector type S; see float_kernels_impl.h for how it is compiled.
//
// Bytes: the keys and values that the tile sees, once (floor of one token: those at the read
// bandwidth). Work: 4 D flops per query row and key, in float32. Reached on 2 cores of an AMD EPYC,
// 2026-11-21, beside other work, gpt-oss's heads over 4,096 bf16 keys: one token 550 us, 115 to 123
// GFLOP/s, 45% of the floor; 64 tokens 140 to 150 GFLOP/s of about 240. What binds: arithmetic. A
// block of 32 keys costs one token's 8 rows 2,048 multiply-adds of vectors, 512 shuffles that turn
// the keys, and 16 vectors of exponentials with their sums.
#pragma once

#include <algorithm>

#include "ops/cpu_matmul/float_kernels_impl.h"
#include "ops/kv_pages.h"

namespace nibble::ops {

template <typename S>
struct Attend {
  using Vec = typename S::Vec;
  static constexpr int kLanes = S::kLanes;
  static constexpr int kKeyVecs = kKeyBlock / kLanes;

  // What a tile works with, all float32, in AttendTile::scratch.
  struct Work {
    int64_t rows, dim, padded;  // padded: D rounded up to whole vectors
    float* keys;                // [D][kKeyBlock], transposed: lanes are keys
    float* values;              // [kKeyBlock][padded]
    float* scores;              // [rows][kKeyBlock]
    float* out;                 // [rows][padded]
    float* queries;             // [rows][D], scaled
    float* top;                 // [rows] largest score so far, the sink's to begin with
    float* sum;                 // [rows] of exp(score - top)
  };

  static Work layout(const AttendTile& t) {
    Work w;
    w.rows = int64_t{t.num_tokens} * t.group;
    w.dim = t.kv->k.shape[3];
    w.padded = (w.dim + kLanes - 1) / kLanes * kLanes;
    float* at = t.scratch;
    const auto take = [&](int64_t n) { return std::exchange(at, at + n); };
    w.keys = take(w.dim * kKeyBlock);
    w.values = take(w.padded * kKeyBlock);
    w.scores = take(w.rows * kKeyBlock);
    w.out = take(w.rows * w.padded);
    w.queries = take(w.rows * w.dim);
    w.top = take(w.rows);
    w.sum = take(w.rows);
    return w;
  }

  static void start(const AttendTile& t, const Work& w) {
    std::fill_n(w.out, w.rows * w.padded, 0.f);
    std::fill_n(w.values, w.padded * kKeyBlock, 0.f);  // the padding stays zero
    for (int64_t r = 0; r < w.rows; ++r) {
      const int64_t token = r / t.group, head = r % t.group;
      const float* q = t.q + token * t.ld + head * w.dim;
      for (int64_t d = 0; d < w.dim; ++d) w.queries[r * w.dim + d] = q[d] * t.scale;
      w.top[r] = t.sinks ? bf16_to_float(t.sinks[head]) : kNothing;
      w.sum[r] = t.sinks ? 1.f : 0.f;
    }
  }

  // Below any score; finite, so that differences are numbers.
  static constexpr float kNothing = -1e30f;

  // Keys and values of positions [begin, end) to columns and rows begin - base .. of the block; the
  // others become zero. A run within one page is contiguous.
  template <typename T>
  static void load_block(const AttendTile& t, const Work& w, int32_t base, int32_t begin,
                         int32_t end) {
    const KvLayer& kv = *t.kv;
    const T *k = static_cast<const T*>(kv.k.data), *v = static_cast<const T*>(kv.v.data);
    if (end - begin < kKeyBlock) {
      std::fill_n(w.keys, w.dim * kKeyBlock, 0.f);
      std::fill_n(w.values, w.padded * kKeyBlock, 0.f);
    }
    for (int32_t pos = begin; pos < end;) {
      const int64_t at = kv_index(kv, t.slot, pos, t.kv_head);
      const int32_t run = std::min(end - pos, kv.page_size - pos % kv.page_size);
      float *keys = w.keys + (pos - base), *values = w.values + (pos - base) * w.padded;
      int32_t i = 0;
      for (; i + kLanes <= run; i += kLanes) {
        const T* block = k + at + i * w.dim;
        has_nan(block, kLanes * w.dim) ? load_keys<true>(block, w.dim, keys + i)
                                       : load_keys<false>(block, w.dim, keys + i);
      }
      for (; i < run; ++i)
        for (int64_t d = 0; d < w.dim; ++d)
          keys[d * kKeyBlock + i] = to_float(k[at + i * w.dim + d]);
      for (i = 0; i < run; ++i) load_value(v + at + i * w.dim, w.dim, values + i * w.padded);
      pos += run;
    }
  }
  // kLanes keys, one behind the other, to as many columns.
  template <bool kHasNan, typename T>
  static void load_keys(const T* k, int64_t dim, float* columns) {
    int64_t d = 0;
    for (; d + kLanes <= dim; d += kLanes) {
      Vec block[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) block[i] = to_vec<kHasNan>(k + i * dim + d);
      S::transpose(block);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) S::store(columns + (d + i) * kKeyBlock, block[i]);
    }
    for (; d < dim; ++d)
      for (int i = 0; i < kLanes; ++i) columns[d * kKeyBlock + i] = to_float(k[i * dim + d]);
  }
  template <typename T>
  static void load_value(const T* v, int64_t dim, float* row) {
    int64_t d = 0;
    if (!has_nan(v, dim))
      for (; d + kLanes <= dim; d += kLanes) S::store(row + d, to_vec<false>(v + d));
    for (; d < dim; ++d) row[d] = to_float(v[d]);
  }
  // Of E4M3, whose fast conversion does not know NaN.
  SIMD_FN bool has_nan(const uint8_t* x, int64_t n) {
    uint8_t most = 0;
    for (int64_t i = 0; i < n; ++i) most = std::max<uint8_t>(most, x[i] & 0x7f);
    return most == 0x7f;
  }
  template <typename T>
  SIMD_FN bool has_nan(const T*, int64_t) {
    return false;
  }
  template <bool kHasNan>
  SIMD_FN Vec to_vec(const uint16_t* x) {
    return S::load_bf16(x);
  }
  template <bool kHasNan>
  SIMD_FN Vec to_vec(const float* x) {
    return S::load(x);
  }
  template <bool kHasNan>
  SIMD_FN Vec to_vec(const uint8_t* x) {
    if (!kHasNan) return S::mul(S::load_e4m3(x), S::set1(S::kE4m3Unit));
    float lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = to_float(x[i]);
    return S::load(lanes);
  }
  SIMD_FN float to_float(uint16_t x) { return bf16_to_float(x); }
  SIMD_FN float to_float(float x) { return x; }
  SIMD_FN float to_float(uint8_t x) { return kE4m3[x]; }

  // scores[r][j] = queries[r] . keys[j] for R rows: lanes are keys, the sum runs over d in order.
  template <int R>
  static void score(const Work& w, int64_t row) {
    Vec acc[R][kKeyVecs];
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kKeyVecs; ++v) acc[r][v] = S::zero();
    const float* q = w.queries + row * w.dim;
    for (int64_t d = 0; d < w.dim; ++d) {
      Vec key[kKeyVecs];
#pragma GCC unroll 8
      for (int v = 0; v < kKeyVecs; ++v) key[v] = S::load(w.keys + d * kKeyBlock + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vec qd = S::set1(q[r * w.dim + d]);
#pragma GCC unroll 8
        for (int v = 0; v < kKeyVecs; ++v) acc[r][v] = S::fma(qd, key[v], acc[r][v]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kKeyVecs; ++v)
        S::store(w.scores + (row + r) * kKeyBlock + v * kLanes, acc[r][v]);
  }

  // Scores of row r become weights exp(score - top); columns outside [begin, end) become 0. Returns
  // what the row's sums so far must be multiplied by.
  static float soften(const Work& w, int64_t r, int begin, int end) {
    float* s = w.scores + r * kKeyBlock;
    for (int j = 0; j < begin; ++j) s[j] = kNothing;
    for (int j = end; j < kKeyBlock; ++j) s[j] = kNothing;
    Vec most = S::load(s);
    for (int v = 1; v < kKeyVecs; ++v) most = S::max(most, S::load(s + v * kLanes));
    const float top = std::max(w.top[r], S::largest(most));
    Vec sum = S::zero();
    for (int v = 0; v < kKeyVecs; ++v)
      S::store(s + v * kLanes, Elementwise<S>::exp(S::sub(S::load(s + v * kLanes), S::set1(top))));
    for (int j = 0; j < begin; ++j) s[j] = 0;
    for (int j = end; j < kKeyBlock; ++j) s[j] = 0;
    for (int v = 0; v < kKeyVecs; ++v) sum = S::add(sum, S::load(s + v * kLanes));
    const float shrink = top == w.top[r] ? 1.f : Elementwise<S>::exp1(w.top[r] - top);
    w.sum[r] = w.sum[r] * shrink + S::sum(sum);
    w.top[r] = top;
    return shrink;
  }

  // out[r] = out[r] * shrink[r] + scores[r] . values for R rows, V vectors of D from d on, over
  // columns [begin, end) only: what others hold must not matter, were it NaN.
  template <int R, int V>
  static void mix(const Work& w, int64_t row, int64_t d, const float* shrink, int begin, int end) {
    Vec acc[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v)
        acc[r][v] =
            S::mul(S::load(w.out + (row + r) * w.padded + d + v * kLanes), S::set1(shrink[r]));
    for (int j = begin; j < end; ++j) {
      Vec value[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) value[v] = S::load(w.values + j * w.padded + d + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vec p = S::set1(w.scores[(row + r) * kKeyBlock + j]);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) acc[r][v] = S::fma(p, value[v], acc[r][v]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v)
        S::store(w.out + (row + r) * w.padded + d + v * kLanes, acc[r][v]);
  }

  // R rows of one token against the columns [begin, end) of the block that it sees.
  template <int R>
  static void rows_of_block(const Work& w, int64_t row, int begin, int end) {
    score<R>(w, row);
    float shrink[R];
    for (int r = 0; r < R; ++r) shrink[r] = soften(w, row + r, begin, end);
    constexpr int M = R < 4 ? R : 4;  // rows whose sums fit the registers beside 4 vectors of D
    for (int r = 0; r < R; r += M) {
      int64_t d = 0;
      for (; d + 4 * kLanes <= w.padded; d += 4 * kLanes)
        mix<M, 4>(w, row + r, d, shrink + r, begin, end);
      for (; d < w.padded; d += kLanes) mix<M, 1>(w, row + r, d, shrink + r, begin, end);
    }
  }

  // One token against the block at `base`.
  static void token_of_block(const AttendTile& t, const Work& w, int32_t token, int32_t base) {
    const int32_t pos = t.first_pos + token;
    const int32_t first = t.window > 0 ? std::max(0, pos - t.window + 1) : 0;
    const int begin = std::clamp(first - base, 0, kKeyBlock);
    const int end = std::clamp(pos + 1 - base, 0, kKeyBlock);
    if (begin >= end) return;
    constexpr int R = S::kLanes == 16 ? 8 : 2;
    int64_t row = int64_t{token} * t.group;
    const int64_t rows = row + t.group;
    for (; row + R <= rows; row += R) rows_of_block<R>(w, row, begin, end);
    if constexpr (R == 8) {
      for (; row + 4 <= rows; row += 4) rows_of_block<4>(w, row, begin, end);
      for (; row + 2 <= rows; row += 2) rows_of_block<2>(w, row, begin, end);
    }
    for (; row < rows; ++row) rows_of_block<1>(w, row, begin, end);
  }

  static void run(const AttendTile& t) {
    const Work w = layout(t);
    start(t, w);
    const int32_t last = t.first_pos + t.num_tokens - 1;
    const int32_t first = t.window > 0 ? std::max(0, t.first_pos - t.window + 1) : 0;
    for (int32_t base = first / kKeyBlock * kKeyBlock; base <= last; base += kKeyBlock) {
      const int32_t begin = std::max(first, base), end = std::min(last + 1, base + kKeyBlock);
      if (t.kv->k.dtype == DType::kBF16)
        load_block<uint16_t>(t, w, base, begin, end);
      else if (t.kv->k.dtype == DType::kF8E4M3)
        load_block<uint8_t>(t, w, base, begin, end);
      else
        load_block<float>(t, w, base, begin, end);
      for (int32_t token = 0; token < t.num_tokens; ++token) token_of_block(t, w, token, base);
    }
    for (int64_t r = 0; r < w.rows; ++r) {
      float* att = t.att + r / t.group * t.ld + r % t.group * w.dim;
      for (int64_t d = 0; d < w.dim; ++d)
        att[d] = w.out[r * w.padded + d] * t.kv->v_scale / w.sum[r];
    }
  }
};

}  // namespace nibble::ops
