// The CPU's parts of mamba2 over a vector type S; see float_kernels_impl.h for how it is compiled.
// As in delta_rule lanes are columns of the state, which never meet; its sums over N run in parts
// alike.
//
// Bytes: the state once in and out, 8 N P a head; of a prompt's tokens none. Work: 5 N P flops a
// token and head.
#pragma once

#include "ops/delta_rule/delta_rule_impl.h"

namespace nibble::ops {

template <typename S>
struct Mamba2On {
  using Vec = typename S::Vec;
  using Delta = DeltaRuleOn<S>;
  static constexpr int kLanes = S::kLanes, kVecs = Delta::kVecs, kParts = Delta::kParts;

  static void convolve(const float* const* inputs, const float* weights, const float* bias,
                       int64_t taps, int64_t n, float* out) {
    Delta::add_taps(inputs, weights, bias, taps, n, out);
    Delta::in_vectors(out, n, [](float* x) { S::store(x, Delta::silu(S::load(x))); });
  }

  // One token: decay and write, query. b.q is C, b.k is B; `dt` weighs the values.
  static void step(const DeltaBlock& b, float* block, int64_t columns, const float* xbc,
                   float decay, float dt, float* out) {
    const float *c = xbc + b.q, *k = xbc + b.k;
    const Vec by = S::set1(decay);
    Vec value[kVecs], y[kParts][kVecs];
    for (int j = 0; j < kVecs; ++j) value[j] = S::mul(S::set1(dt), S::load(b.values + j * kLanes));
    for (int p = 0; p < kParts; ++p)
      for (int j = 0; j < kVecs; ++j) y[p][j] = S::zero();
    int64_t i = 0;
    for (; i + kParts <= b.key_dim; i += kParts)
#pragma GCC unroll 8
      for (int p = 0; p < kParts; ++p)
        write(block + (i + p) * kDeltaColumns, by, k[i + p], value, c[i + p], y[p]);
    for (; i < b.key_dim; ++i) write(block + i * kDeltaColumns, by, k[i], value, c[i], y[0]);
    float all[kDeltaColumns];
#pragma GCC unroll 8
    for (int j = 0; j < kVecs; ++j) {
      for (int p = 1; p < kParts; ++p) y[0][j] = S::add(y[0][j], y[p][j]);
      S::store(all + j * kLanes, y[0][j]);
    }
    std::copy_n(all, columns, out);
  }
  SIMD_FN void write(float* row, Vec decay, float k, const Vec* value, float c, Vec* y) {
    const Vec of = S::set1(k), with = S::set1(c);
#pragma GCC unroll 8
    for (int j = 0; j < kVecs; ++j) {
      const Vec s = S::fma(of, value[j], S::mul(S::load(row + j * kLanes), decay));
      S::store(row + j * kLanes, s);
      y[j] = S::fma(s, with, y[j]);
    }
  }
  static void run(const DeltaBlock& b) { Delta::run_tokens(b, step); }

  static void gate(float* y, const float* x, float d, const float* z, int64_t n) {
    for (int64_t i = 0; i < n; i += kLanes) {
      const int64_t some = std::min<int64_t>(kLanes, n - i);
      float by[kLanes] = {};
      std::copy_n(z + i, some, by);
      S::store(by, Delta::silu(S::load(by)));
      for (int64_t j = 0; j < some; ++j) y[i + j] = __builtin_fmaf(d, x[i + j], y[i + j]) * by[j];
    }
  }

  static void norm(float* y, const float* weight, float eps, int64_t n) {
    const float inverse =
        1 / __builtin_sqrtf(Delta::sum_of_squares(y, n) / static_cast<float>(n) + eps);
    for (int64_t i = 0; i < n; ++i) y[i] *= inverse * weight[i];
  }

  static constexpr Mamba2Kernels kernels() {
    return {.convolve = convolve, .run = run, .gate = gate, .norm = norm};
  }
};

}  // namespace nibble::ops
