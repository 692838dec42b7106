// The attention tile over a vector type S; see float_kernels_impl.h for how it is compiled.
#pragma once

#include <algorithm>

#include "ops/blocked/float_kernels_impl.h"
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
      for (int32_t i = 0; i < run; ++i) {
        const int32_t j = pos - base + i;
        const T *ki = k + at + i * w.dim, *vi = v + at + i * w.dim;
        for (int64_t d = 0; d < w.dim; ++d) w.keys[d * kKeyBlock + j] = to_float(ki[d]);
        for (int64_t d = 0; d < w.dim; ++d) w.values[j * w.padded + d] = to_float(vi[d]);
      }
      pos += run;
    }
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

  // out[r] = out[r] * shrink[r] + scores[r] . values for R rows, V vectors of D from d on.
  template <int R, int V>
  static void mix(const Work& w, int64_t row, int64_t d, const float* shrink) {
    Vec acc[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v)
        acc[r][v] =
            S::mul(S::load(w.out + (row + r) * w.padded + d + v * kLanes), S::set1(shrink[r]));
    for (int j = 0; j < kKeyBlock; ++j) {
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

  // R rows against the block at `base`: row r sees columns [begin(r), end(r)).
  template <int R>
  static void rows_of_block(const AttendTile& t, const Work& w, int64_t row, int32_t base) {
    score<R>(w, row);
    float shrink[R];
    for (int r = 0; r < R; ++r) {
      const auto pos = static_cast<int32_t>(t.first_pos + (row + r) / t.group);
      const int32_t first = t.window > 0 ? std::max(0, pos - t.window + 1) : 0;
      const int begin = std::clamp(first - base, 0, kKeyBlock);
      const int end = std::clamp(pos + 1 - base, 0, kKeyBlock);
      shrink[r] = soften(w, row + r, std::min(begin, end), end);
    }
    int64_t d = 0;
    for (; d + 4 * kLanes <= w.padded; d += 4 * kLanes) mix<R, 4>(w, row, d, shrink);
    for (; d < w.padded; d += kLanes) mix<R, 1>(w, row, d, shrink);
  }

  static void run(const AttendTile& t) {
    constexpr int R = S::kLanes == 16 ? 4 : 2;
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
      int64_t r = 0;
      for (; r + R <= w.rows; r += R) rows_of_block<R>(t, w, r, base);
      for (; r < w.rows; ++r) rows_of_block<1>(t, w, r, base);
    }
    for (int64_t r = 0; r < w.rows; ++r) {
      float* att = t.att + r / t.group * t.ld + r % t.group * w.dim;
      for (int64_t d = 0; d < w.dim; ++d) att[d] = w.out[r * w.padded + d] / w.sum[r];
    }
  }
};

}  // namespace nibble::ops
