// The CPU's parts of delta_rule over a vector type S; see float_kernels_impl.h for how it is
// compiled. Lanes are columns of the state, which never meet: the sums over DK of each run in
// kParts, element i in part i mod kParts, which are added in order.
//
// Bytes: the state once in and out, 8 DK DV a value head; of a prompt's tokens none, as a block of
// columns stays in L1 from token to token. Small states are written through the caches, which read
// their lines first: 12 DK DV. Work: 8 DK DV flops a token and value head.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cpu_matmul/float_kernels_impl.h"

namespace nibble::ops {

template <typename S>
struct DeltaRuleOn {
  using Vec = typename S::Vec;
  using E = Elementwise<S>;
  static constexpr int kLanes = S::kLanes;
  static constexpr int kVecs = kDeltaColumns / kLanes, kParts = kVecs >= 8 ? 1 : 8 / kVecs;
  static_assert(kVecs * kLanes == kDeltaColumns);

  SIMD_FN Vec silu(Vec x) { return S::div(x, S::add(S::set1(1), E::exp(S::sub(S::zero(), x)))); }

  static void convolve(const float* const* inputs, const float* weights, int64_t taps, int64_t n,
                       float* out) {
    add_taps(inputs, weights, nullptr, taps, n, out);
    in_vectors(out, n, [](float* x) { S::store(x, silu(S::load(x))); });
  }

  // out[c] = bias[c] + sum over j of weights[c][j] inputs[j][c]; bias may be none.
  static void add_taps(const float* const* inputs, const float* weights, const float* bias,
                       int64_t taps, int64_t n, float* out) {
    int64_t c = taps == 4 ? add_four_taps(inputs, weights, bias, n, out) : 0;
    for (; c < n; ++c) {
      float sum = bias == nullptr ? 0 : bias[c];
      for (int64_t j = 0; j < taps; ++j)
        sum = __builtin_fmaf(weights[c * taps + j], inputs[j][c], sum);
      out[c] = sum;
    }
  }
  // kLanes channels at once; returns how many of the n it has done.
  static int64_t add_four_taps(const float* const* inputs, const float* weights, const float* bias,
                               int64_t n, float* out) {
    int64_t c = 0;
    for (; c + kLanes <= n; c += kLanes) {
      const float* w = weights + 4 * c;
      const Vec first = S::load(w), second = S::load(w + kLanes);
      const Vec third = S::load(w + 2 * kLanes), fourth = S::load(w + 3 * kLanes);
      const Vec even[2] = {S::even(first, second), S::even(third, fourth)};
      const Vec odd[2] = {S::odd(first, second), S::odd(third, fourth)};
      Vec sum = bias == nullptr ? S::zero() : S::load(bias + c);
      sum = S::fma(S::even(even[0], even[1]), S::load(inputs[0] + c), sum);
      sum = S::fma(S::even(odd[0], odd[1]), S::load(inputs[1] + c), sum);
      sum = S::fma(S::odd(even[0], even[1]), S::load(inputs[2] + c), sum);
      S::store(out + c, S::fma(S::odd(odd[0], odd[1]), S::load(inputs[3] + c), sum));
    }
    return c;
  }

  // f(kLanes floats) for all of x, the last of them in a copy with zeros behind.
  template <typename F>
  static void in_vectors(float* x, int64_t n, const F& f) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) f(x + i);
    if (i == n) return;
    float rest[kLanes] = {};
    std::copy(x + i, x + n, rest);
    f(rest);
    std::copy_n(rest, n - i, x + i);
  }

  static float sum_of_squares(const float* x, int64_t n) {
    const int64_t whole = n / kLanes * kLanes;
    Vec squares = S::zero();
    for (int64_t i = 0; i < whole; i += kLanes)
      squares = S::fma(S::load(x + i), S::load(x + i), squares);
    float sum = S::sum(squares);
    for (int64_t i = whole; i < n; ++i) sum += x[i] * x[i];
    return sum;
  }

  static void l2_norm(float* x, int64_t n, float factor) {
    const float by = factor / __builtin_sqrtf(sum_of_squares(x, n) + 1e-6f);
    for (int64_t i = 0; i < n; ++i) x[i] *= by;
  }

  static void norm_gated(float* x, const float* z, const float* weight, float eps, int64_t n) {
    const float inverse = 1 / __builtin_sqrtf(sum_of_squares(x, n) / static_cast<float>(n) + eps);
    for (int64_t i = 0; i < n; i += kLanes) {
      const int64_t some = std::min<int64_t>(kLanes, n - i);
      float gate[kLanes] = {};
      std::copy_n(z + i, some, gate);
      S::store(gate, silu(S::load(gate)));
      for (int64_t j = 0; j < some; ++j) x[i + j] *= inverse * weight[i + j] * gate[j];
    }
  }

  // One token: decay, read, write, query.
  static void step(const DeltaBlock& b, float* block, int64_t columns, const float* qkv,
                   float decay, float beta, float* out) {
    const float *q = qkv + b.q, *k = qkv + b.k;
    const Vec by = S::set1(decay);
    Vec known[kParts][kVecs], delta[kVecs], o[kParts][kVecs];
    for (int p = 0; p < kParts; ++p)
      for (int j = 0; j < kVecs; ++j) known[p][j] = o[p][j] = S::zero();
    int64_t i = 0;
    for (; i + kParts <= b.key_dim; i += kParts)
#pragma GCC unroll 8
      for (int p = 0; p < kParts; ++p)
        read(block + (i + p) * kDeltaColumns, by, k[i + p], known[p]);
    for (; i < b.key_dim; ++i) read(block + i * kDeltaColumns, by, k[i], known[0]);
#pragma GCC unroll 8
    for (int j = 0; j < kVecs; ++j) {
      for (int p = 1; p < kParts; ++p) known[0][j] = S::add(known[0][j], known[p][j]);
      const Vec v = S::load(b.values + j * kLanes);
      delta[j] = S::mul(S::set1(beta), S::sub(v, known[0][j]));
    }
    for (i = 0; i + kParts <= b.key_dim; i += kParts)
#pragma GCC unroll 8
      for (int p = 0; p < kParts; ++p)
        write(block + (i + p) * kDeltaColumns, k[i + p], delta, q[i + p], o[p]);
    for (; i < b.key_dim; ++i) write(block + i * kDeltaColumns, k[i], delta, q[i], o[0]);
    float all[kDeltaColumns];
#pragma GCC unroll 8
    for (int j = 0; j < kVecs; ++j) {
      for (int p = 1; p < kParts; ++p) o[0][j] = S::add(o[0][j], o[p][j]);
      S::store(all + j * kLanes, o[0][j]);
    }
    std::copy_n(all, columns, out);
  }
  SIMD_FN void read(float* row, Vec decay, float k, Vec* known) {
    const Vec of = S::set1(k);
#pragma GCC unroll 8
    for (int j = 0; j < kVecs; ++j) {
      const Vec s = S::mul(S::load(row + j * kLanes), decay);
      S::store(row + j * kLanes, s);
      known[j] = S::fma(s, of, known[j]);
    }
  }
  SIMD_FN void write(float* row, float k, const Vec* delta, float q, Vec* o) {
    const Vec of = S::set1(k), by = S::set1(q);
#pragma GCC unroll 8
    for (int j = 0; j < kVecs; ++j) {
      const Vec s = S::fma(of, delta[j], S::load(row + j * kLanes));
      S::store(row + j * kLanes, s);
      o[j] = S::fma(s, by, o[j]);
    }
  }

  // f(tile's first column, columns, block) for each tile.
  template <typename F>
  SIMD_FN void for_tiles(const DeltaBlock& b, const F& f) {
    float* block = b.block;
    for (int64_t first = 0; first < b.columns; first += kDeltaColumns) {
      f(first, std::min<int64_t>(kDeltaColumns, b.columns - first), block);
      block += b.key_dim * kDeltaColumns;
    }
  }

  static void run(const DeltaBlock& b) { run_tokens(b, step); }

  // A tile's columns of a row of the state.
  static void copy(const float* from, int64_t columns, float* to) {
    if (columns != kDeltaColumns) return static_cast<void>(std::copy_n(from, columns, to));
#pragma GCC unroll 8
    for (int j = 0; j < kVecs; ++j) S::store(to + j * kLanes, S::load(from + j * kLanes));
  }
  static void copy_past_caches(const float* from, float* to) {
#pragma GCC unroll 8
    for (int j = 0; j < kVecs; ++j) S::stream(to + j * kLanes, S::load(from + j * kLanes));
  }

  // The state comes and goes by whole rows, in the order in which it lies. Columns beyond those
  // there are stay zero. `one` is a token, as step().
  template <typename Step>
  SIMD_FN void run_tokens(const DeltaBlock& b, const Step& one) {
    const int64_t tiles = (b.columns + kDeltaColumns - 1) / kDeltaColumns;
    std::fill_n(b.values, kDeltaColumns, 0.f);
    if (b.from == nullptr || b.columns % kDeltaColumns != 0)
      std::fill_n(b.block, tiles * b.key_dim * kDeltaColumns, 0.f);
    for (int64_t i = 0; b.from != nullptr && i < b.key_dim; ++i)
      for_tiles(b, [&](int64_t first, int64_t columns, float* block) {
        copy(b.from + i * b.ld_state + first, columns, block + i * kDeltaColumns);
      });
    for_tiles(b, [&](int64_t first, int64_t columns, float* block) {
      for (int64_t t = 0; t < b.tokens; ++t) {
        const float *qkv = b.qkv + t * b.ld_qkv, *gates = b.gates + t * b.ld_gates;
        std::copy_n(qkv + b.v + first, columns, b.values);
        one(b, block, columns, qkv, gates[0], gates[1], b.out + t * b.ld_out + first);
      }
    });
    const bool streams = b.past_caches && b.columns % kDeltaColumns == 0 &&
                         b.ld_state % kLanes == 0 &&
                         reinterpret_cast<uintptr_t>(b.to) % (kLanes * sizeof(float)) == 0;
    for (int64_t i = 0; i < b.key_dim; ++i)
      for_tiles(b, [&](int64_t first, int64_t columns, float* block) {
        const float* row = block + i * kDeltaColumns;
        float* to = b.to + i * b.ld_state + first;
        streams ? copy_past_caches(row, to) : copy(row, columns, to);
      });
    if (streams) S::fence();
  }

  static constexpr DeltaKernels kernels() {
    return {.convolve = convolve, .l2_norm = l2_norm, .run = run, .norm_gated = norm_gated};
  }
};

}  // namespace nibble::ops
