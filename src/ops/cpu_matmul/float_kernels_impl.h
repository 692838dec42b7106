// Bodies of FloatKernels over a vector type S (cpu/simd_*.h). Include only in the file that is
// compiled for S: everything here is instantiated with that file's instruction set.
//
// Bytes: the weights once (tiles after the first find decoded rows in L2). Reached on 2 cores,
// 2026-11-21, beside other work: MXFP4 experts on a Xeon (reads at 22 GB/s), one token 77% of the
// floor with AVX-512 and 33 to 40% with AVX2, 8 tokens 61 to 77% and 29 to 35%; 512 tokens on an
// EPYC 163 GFLOP/s with AVX-512. What binds: float32 multiply-adds; int8 products
// (int8_kernels_impl.h) take a quarter of the instructions and go first wherever activations may be
// rounded.
#pragma once

#include <cstring>
#include <type_traits>
#include <utility>

#include "cpu/simd.h"
#include "formats/bf16.h"
#include "formats/mxfp4.h"
#include "ops/cpu_matmul/decode_impl.h"
#include "ops/cpu_matmul/float_kernels.h"
#include "ops/swiglu.h"

namespace nibble::ops {

// ---- Matrix products ----------------------------------------------------------------------------

// Rows of weights as vectors of floats: load(r, k) is row r, elements k .. k + kLanes - 1.
template <typename S>
struct FloatRows {
  const float* at;
  int64_t stride;
  SIMD_FN typename S::Vec load(const FloatRows& w, int64_t r, int64_t k) {
    return S::load(w.at + r * w.stride + k);
  }
  SIMD_FN float one(const FloatRows& w, int64_t r, int64_t k) { return w.at[r * w.stride + k]; }
  SIMD_FN void fetch_behind(const FloatRows&, int64_t, int64_t) {}
};

template <typename S>
struct Bf16Rows {
  const uint16_t* at;
  int64_t stride;
  // Of the rows behind the `n` at hand, the line of column k: rows may be too short for the
  // hardware to notice the stream in time.
  SIMD_FN void fetch_behind(const Bf16Rows& w, int64_t n, int64_t k) {
    constexpr int64_t kLine = 32;
    if (k % kLine != 0) return;
#pragma GCC unroll 8
    for (int64_t r = 0; r < n; ++r) __builtin_prefetch(w.at + (n + r) * w.stride + k, 0, 2);
  }
  SIMD_FN typename S::Vec load(const Bf16Rows& w, int64_t r, int64_t k) {
    return S::load_bf16(w.at + r * w.stride + k);
  }
  SIMD_FN float one(const Bf16Rows& w, int64_t r, int64_t k) {
    return bf16_to_float(w.at[r * w.stride + k]);
  }
};

template <typename S>
struct Mxfp4Rows {
  const uint8_t* codes;
  const uint8_t* scales;
  int64_t stride;  // blocks of a row
};

template <typename S>
struct Linear {
  using Vec = typename S::Vec;
  static constexpr int kLanes = S::kLanes;

  // acc[r][m] += w[r][k0, k1) . x[m][k0, k1), k1 - k0 a multiple of kLanes.
  template <int R, int M, typename Rows>
  static void accumulate(const Rows& w, const float* const* x, int64_t k0, int64_t k1, Vec* acc) {
    Vec a[R][M];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) a[r][m] = acc[r * M + m];
    for (int64_t k = k0; k < k1; k += kLanes) {
      Rows::fetch_behind(w, R, k);
      Vec wr[R];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) wr[r] = Rows::load(w, r, k);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        const Vec xm = S::load(x[m] + k);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) a[r][m] = S::fma(wr[r], xm, a[r][m]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) acc[r * M + m] = a[r][m];
  }

  // The same over whole blocks [b0, b1) of MXFP4 rows, decoded on the way.
  template <int R, int M>
  static void accumulate(const Mxfp4Rows<S>& w, const float* const* x, int64_t b0, int64_t b1,
                         Vec* acc) {
    constexpr int kVecs = 32 / kLanes;
    Vec a[R][M];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) a[r][m] = acc[r * M + m];
    for (int64_t b = b0; b < b1; ++b) {
      // The next rows, one cache line per four blocks of each: a row is too short for the hardware
      // to notice the stream in time.
      constexpr int kAhead = (R + 3) / 4;
#pragma GCC unroll 2
      for (int i = 0; i < kAhead; ++i)
        __builtin_prefetch(w.codes + ((R + b % 4 * kAhead + i) * w.stride + b) * 16, 0, 1);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        Vec wr[kVecs];
        const int64_t at = r * w.stride + b;
        S::decode_block(w.codes + at * 16, Decode<S>::e8m0(w.scales[at]), wr);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
          for (int j = 0; j < kVecs; ++j)
            a[r][m] = S::fma(wr[j], S::load(x[m] + 32 * b + j * kLanes), a[r][m]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) acc[r * M + m] = a[r][m];
  }

  // What is left of K behind the last whole vector, in order.
  template <typename Rows>
  static float tail(const Rows& w, int64_t r, const float* x, int64_t k0, int64_t k1, float sum) {
    for (int64_t k = k0; k < k1; ++k) sum = __builtin_fmaf(Rows::one(w, r, k), x[k], sum);
    return sum;
  }
  static float tail(const Mxfp4Rows<S>&, int64_t, const float*, int64_t, int64_t, float sum) {
    return sum;
  }

  template <typename Rows>
  static Rows behind(const Rows& w, int64_t rows) {
    return {w.at + rows * w.stride, w.stride};
  }
  static Mxfp4Rows<S> behind(const Mxfp4Rows<S>& w, int64_t rows) {
    return {w.codes + rows * w.stride * 16, w.scales + rows * w.stride, w.stride};
  }

  // From accumulators to outputs, for one row and M inputs.
  template <int M, typename Rows>
  static void finish(const Rows& w, const uint16_t* bias, int64_t whole, int64_t cols,
                     const float* const* x, const Vec* acc, float* y, int64_t ldy) {
    for (int m = 0; m < M; ++m) {
      const float sum = tail(w, 0, x[m], whole, cols, S::sum(acc[m]));
      y[m * ldy] = bias == nullptr ? sum : sum + bf16_to_float(*bias);
    }
  }

  // One tile over all of K, from zero to y.
  template <int R, int M, typename Rows>
  static void tile(const Rows& w, const uint16_t* bias, int64_t cols, const float* const* x,
                   float* y, int64_t ldy) {
    Vec acc[R * M];
    for (int i = 0; i < R * M; ++i) acc[i] = S::zero();
    const int64_t whole = cols / kLanes * kLanes;
    if constexpr (std::is_same_v<Rows, Mxfp4Rows<S>>)
      accumulate<R, M>(w, x, 0, cols / 32, acc);
    else
      accumulate<R, M>(w, x, 0, whole, acc);
    for (int r = 0; r < R; ++r)
      finish<M>(behind(w, r), bias == nullptr ? nullptr : bias + r, whole, cols, x, acc + r * M,
                y + r, ldy);
  }

  template <int M, typename Rows>
  static void all_rows(Rows w, const uint16_t* bias, int64_t rows, int64_t cols,
                       const float* const* x, float* y, int64_t ldy) {
    // Few inputs need more rows at once to keep the multipliers busy.
    constexpr int R = M == 1 ? 8 : M == 2 ? 2 * S::kTileRows : S::kTileRows;
    int64_t r = 0;
    const auto bias_at = [&] { return bias == nullptr ? nullptr : bias + r; };
    for (; r + R <= rows; r += R) tile<R, M>(behind(w, r), bias_at(), cols, x, y + r, ldy);
    for (; r < rows; ++r) tile<1, M>(behind(w, r), bias_at(), cols, x, y + r, ldy);
  }

  template <typename Rows>
  static void dot(const Rows& w, const Weight& weight, const float* const* x, int64_t tokens,
                  float* y, int64_t ldy) {
    constexpr int M = S::kTileTokens;
    const int64_t rows = weight.rows, cols = weight.cols;
    int64_t m = 0;
    for (; m + M <= tokens; m += M)
      all_rows<M>(w, weight.bias, rows, cols, x + m, y + m * ldy, ldy);
    switch (tokens - m) {
      case 3:
        return all_rows<3>(w, weight.bias, rows, cols, x + m, y + m * ldy, ldy);
      case 2:
        return all_rows<2>(w, weight.bias, rows, cols, x + m, y + m * ldy, ldy);
      case 1:
        return all_rows<1>(w, weight.bias, rows, cols, x + m, y + m * ldy, ldy);
    }
    static_assert(M == 4);
  }

  static Mxfp4Rows<S> mxfp4_rows(const Weight& w) { return {w.codes, w.scales, w.cols / 32}; }
  static Bf16Rows<S> bf16_rows(const Weight& w) {
    return {reinterpret_cast<const uint16_t*>(w.codes), w.cols};
  }

  static void dot_weight(const Weight& w, const float* const* x, int64_t tokens, float* y,
                         int64_t ldy) {
    if (w.format == Format::kMxfp4)
      dot(mxfp4_rows(w), w, x, tokens, y, ldy);
    else
      dot(bf16_rows(w), w, x, tokens, y, ldy);
  }

  // In chunks of K, so that a chunk of the inputs stays in L1 while the rows pass by; the
  // accumulators wait in memory meanwhile, exactly.
  static void dot_decoded(const Weight& w, const float* decoded, const float* const* x,
                          int64_t tokens, float* y, int64_t ldy) {
    constexpr int M = S::kTileTokens, R = S::kTileRows;
    constexpr int64_t kChunk = 512;
    const FloatRows<S> rows{decoded, w.cols};
    const int64_t whole = w.cols / kLanes * kLanes;
    int64_t m = 0;
    for (; m + M <= tokens; m += M) {
      Vec acc[kBlockRows * M];
      for (int64_t i = 0; i < w.rows * M; ++i) acc[i] = S::zero();
      for (int64_t k = 0; k < whole; k += kChunk) {
        const int64_t end = k + kChunk < whole ? k + kChunk : whole;
        int64_t r = 0;
        for (; r + R <= w.rows; r += R)
          accumulate<R, M>(behind(rows, r), x + m, k, end, acc + r * M);
        for (; r < w.rows; ++r) accumulate<1, M>(behind(rows, r), x + m, k, end, acc + r * M);
      }
      for (int64_t r = 0; r < w.rows; ++r)
        finish<M>(behind(rows, r), w.bias ? w.bias + r : nullptr, whole, w.cols, x + m, acc + r * M,
                  y + m * ldy + r, ldy);
    }
    if (m < tokens) dot(rows, w, x + m, tokens - m, y + m * ldy, ldy);
  }
};

// ---- Element by element -------------------------------------------------------------------------

template <typename S>
struct Elementwise {
  using Vec = typename S::Vec;
  static constexpr int kLanes = S::kLanes;

  // exp(x) to about 2 units in the last place; below -87.3 it stays at exp(-87.3), 1.2e-38.
  // Cephes' expf: x = n ln 2 + r, a polynomial for exp(r). exp(0) is exactly 1, exp(NaN) NaN.
  SIMD_FN Vec exp(Vec x) {
    x = clamp(x, -87.3365447504019f, 88.3762626647949f);
    const Vec n = S::round(S::mul(x, S::set1(1.44269504088896341f)));
    Vec r = S::fma(n, S::set1(-0.693359375f), x);
    r = S::fma(n, S::set1(2.12194440e-4f), r);
    Vec p = S::set1(1.9875691500e-4f);
    p = S::fma(p, r, S::set1(1.3981999507e-3f));
    p = S::fma(p, r, S::set1(8.3334519073e-3f));
    p = S::fma(p, r, S::set1(4.1665795894e-2f));
    p = S::fma(p, r, S::set1(1.6666665459e-1f));
    p = S::fma(p, r, S::set1(5.0000001201e-1f));
    p = S::add(S::fma(p, S::mul(r, r), r), S::set1(1));
    return S::mul(p, S::pow2(n));
  }

  // A NaN stays one: x86's min and max give their second operand then.
  SIMD_FN Vec at_most(Vec x, float high) { return S::min(S::set1(high), x); }
  SIMD_FN Vec clamp(Vec x, float low, float high) { return S::max(S::set1(low), at_most(x, high)); }

  static float exp1(float x) {
    float lanes[kLanes];
    S::store(lanes, exp(S::set1(x)));
    return lanes[0];
  }

  static void add_norm(float* y, float* h, const float* x, const float* d, const Norm& norm,
                       int64_t n, bool bf16) {
    const int64_t whole = n / kLanes * kLanes;
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] + d[i];
    Vec squares = S::zero();
    for (int64_t i = 0; i < whole; i += kLanes)
      squares = S::fma(S::load(y + i), S::load(y + i), squares);
    float sum = S::sum(squares);
    for (int64_t i = whole; i < n; ++i) sum += y[i] * y[i];
    const float inv = 1 / __builtin_sqrtf(sum / static_cast<float>(n) + norm.eps);
    for (int64_t i = 0; i < n; ++i)
      h[i] = y[i] * inv * (norm.offset + bf16_to_float(norm.weight[i]));
    if (bf16) round_all(h, n);
  }

  static void round_all(float* x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) x[i] = bf16_to_float(bf16_from_float(x[i]));
  }

  static void swiglu(const float* y, float* u, int64_t n, const Swiglu& act) {
    if (act.is_relu2()) return relu2(y, u, n);
    int64_t j = 0;
    for (; j + kLanes <= n; j += kLanes)
      S::store(u + j, swiglu_lanes(S::load(y + 2 * j), S::load(y + 2 * j + kLanes), act));
    if (j == n) return;
    float pairs[2 * kLanes] = {}, out[kLanes];
    std::memcpy(pairs, y + 2 * j, 2 * (n - j) * sizeof(float));
    S::store(out, swiglu_lanes(S::load(pairs), S::load(pairs + kLanes), act));
    std::memcpy(u + j, out, (n - j) * sizeof(float));
  }
  static void relu2(const float* y, float* u, int64_t n) {
    for (int64_t j = 0; j < n; ++j) u[j] = y[j] <= 0 ? 0 : y[j] * y[j];
  }
  static void gate(float* x, const float* gate, int64_t n) {
    for (int64_t i = 0; i < n; i += kLanes) {
      const int64_t some = n - i < kLanes ? n - i : kLanes;
      float by[kLanes] = {};
      std::memcpy(by, gate + i, some * sizeof(float));
      const Vec e = exp(S::sub(S::zero(), S::load(by)));
      S::store(by, S::div(S::set1(1), S::add(S::set1(1), e)));
      for (int64_t j = 0; j < some; ++j) x[i + j] *= by[j];
    }
  }
  // Of kLanes pairs (gate, up).
  SIMD_FN Vec swiglu_lanes(Vec first, Vec second, const Swiglu& act) {
    const Vec g = at_most(S::even(first, second), act.limit);
    const Vec v = clamp(S::odd(first, second), -act.limit, act.limit);
    const Vec s = S::div(g, S::add(S::set1(1), exp(S::mul(g, S::set1(-act.alpha)))));
    return S::mul(s, S::add(v, S::set1(act.shift)));
  }
};

// The rows of the table.
template <typename S>
constexpr FloatKernels make_float_kernels(void (*attend)(const AttendTile&),
                                          const DeltaKernels& delta, const Mamba2Kernels& mamba2) {
  return {.direct_tokens = S::kTileTokens,
          .direct_bf16_tokens = 8 * S::kTileTokens,
          .dot_weight = Linear<S>::dot_weight,
          .decode = Decode<S>::rows,
          .dot_decoded = Linear<S>::dot_decoded,
          .add_norm = Elementwise<S>::add_norm,
          .swiglu = Elementwise<S>::swiglu,
          .gate = Elementwise<S>::gate,
          .delta = delta,
          .mamba2 = mamba2,
          .attend = attend};
}

}  // namespace nibble::ops
