// Bodies of FloatPanelKernels over a vector type S (cpu/simd_*.h); see float_kernels_impl.h for how
// it is compiled.
//
// Bytes: those of the panel, once; for more inputs than one round 32 decoded k wait in L1.
// Reached on one core of an EPYC beside other work, 2026-11-21, out_proj of gpt-oss-20b in MXFP8:
// one token 0.65 ms (bf16 rows 0.97, MXFP4 by int8 0.26), 64 tokens 32 ms, as bf16 rows and 3.8
// times MXFP4 by int8. What binds: float32 multiply-adds, 32 a unit, row of vectors and input, for
// E4M3 does not fit int8.
#pragma once

#include "cpu/simd.h"
#include "formats/fp8_block.h"
#include "ops/cpu_matmul/float_panel_kernels.h"

namespace nibble::ops {

template <typename S, Format kFormat>
struct FloatPanels {
  using Vec = typename S::Vec;
  static constexpr int kLanes = S::kLanes;
  static constexpr int kMostTokens = kLanes == 8 ? 2 : 4;
  static constexpr bool kNibbles = kFormat == Format::kNvfp4;
  static constexpr int kUnitBytes = kNibbles ? 256 : 512;  // of the codes of 32 k
  static constexpr int kLines = kNibbles ? 2 : 4;          // of 8 k, that share a scale here
  static constexpr int64_t kAhead = 8192;

  // Of a unit; of FP8 with scales of blocks, 64 bytes of four.
  static constexpr int kScaleBytes =
      kFormat == Format::kNvfp4 ? 32 : (kFormat == Format::kFp8Row ? 0 : 16);
  static constexpr int64_t kScalesAhead = kAhead / kUnitBytes * kScaleBytes;

  // k = 8 line .. 8 line + 7 of a unit, of kLanes rows.
  struct Codes {
    const uint8_t* at;
    int row;
    SIMD_FN void load(const Codes& c, int line, Vec* w) {
      if constexpr (kNibbles) {
        S::load_e2m1(c.at + 64 * line + 4 * c.row, w);
      } else {
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) w[j] = S::load_e4m3(c.at + 16 * (8 * line + j) + c.row);
      }
    }
  };
  struct Decoded {
    const float* at;
    SIMD_FN void load(const Decoded& d, int line, Vec* w) {
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) w[j] = S::load(d.at + (8 * line + j) * kLanes);
    }
  };

  // Of the blocks of unit u: one, or two of NVFP4, which finish() still multiplies.
  SIMD_FN void scales_of(const FloatPanel& p, int64_t u, int row, Vec* scale) {
    if constexpr (kFormat == Format::kNvfp4) {
      scale[0] = S::load_e4m3(p.scales + 32 * u + row);
      scale[1] = S::load_e4m3(p.scales + 32 * u + 16 + row);
    } else if constexpr (kFormat == Format::kMxfp8) {
      scale[0] = S::mul(S::scales(p.scales + 16 * u + row), S::set1(S::kE4m3Unit));
    } else if constexpr (kFormat == Format::kFp8Block) {
      const auto* floats = reinterpret_cast<const float*>(p.scales);
      scale[0] =
          S::mul(S::load(floats + u * 32 / kFp8BlockElems * 16 + row), S::set1(S::kE4m3Unit));
    } else {
      scale[0] = S::set1(S::kE4m3Unit);
    }
  }

  // sums[m] += scales * (unit . x[m]) for M inputs and kLanes rows.
  template <int M, typename Weights>
  static void unit(const Weights& weights, const Vec* scale, const float* const* x, int64_t k0,
                   float* sums) {
    Vec part[M][4], w[8];
#pragma GCC unroll 4
    for (int line = 0; line < 4; ++line) {
      if (line % kLines == 0)
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) part[m][i] = S::zero();
      Weights::load(weights, line, w);
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j)
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m)
          part[m][j % 4] = S::fma(w[j], S::set1(x[m][k0 + 8 * line + j]), part[m][j % 4]);
      if (line % kLines != kLines - 1) continue;
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        const Vec sum = S::add(S::add(part[m][0], part[m][1]), S::add(part[m][2], part[m][3]));
        S::store(sums + 16 * m, S::fma(scale[line / kLines], sum, S::load(sums + 16 * m)));
      }
    }
  }

  // Inputs from `m` on, as many at a time as registers hold.
  template <typename Weights>
  static void all_tokens(const Weights& weights, const Vec* scale, const FloatPanel& p, int64_t k0,
                         int row) {
    int64_t m = 0;
    for (; m + kMostTokens <= p.tokens; m += kMostTokens)
      unit<kMostTokens>(weights, scale, p.x + m, k0, p.sums + 16 * m + row);
    for (; m < p.tokens; ++m) unit<1>(weights, scale, p.x + m, k0, p.sums + 16 * m + row);
  }

  // kLanes rows from `row` on. For more inputs than one round a unit is decoded first.
  static void rows(const FloatPanel& p, int row) {
    float decoded[32 * kLanes];
    for (int64_t u = 0; u < p.units; ++u) {
      const Codes codes{p.codes + kUnitBytes * u, row};
      if (row == 0) {
        for (int i = 0; i < kUnitBytes; i += 64) __builtin_prefetch(codes.at + kAhead + i, 0, 1);
        if constexpr (kScaleBytes > 0)
          if (u % (64 / kScaleBytes) == 0)
            __builtin_prefetch(p.scales + kScaleBytes * u + kScalesAhead, 0, 1);
      }
      Vec scale[2];
      scales_of(p, u, row, scale);
      if (p.tokens <= kMostTokens) {
        all_tokens(codes, scale, p, 32 * u, row);
        continue;
      }
      for (int line = 0; line < 4; ++line) {
        Vec w[8];
        Codes::load(codes, line, w);
        for (int j = 0; j < 8; ++j) S::store(decoded + (8 * line + j) * kLanes, w[j]);
      }
      all_tokens(Decoded{decoded}, scale, p, 32 * u, row);
    }
  }

  SIMD_FN Vec finish(const FloatPanel& p, int row, Vec sum, Vec bias) {
    if constexpr (kFormat == Format::kNvfp4)
      return S::fma(sum, S::mul(S::load(p.row_scales + row), S::set1(S::kE2m1Unit * S::kE4m3Unit)),
                    bias);
    else if constexpr (kFormat == Format::kFp8Row)
      return S::fma(sum, S::load(p.row_scales + row), bias);
    else
      return S::add(sum, bias);
  }

  static void multiply(const FloatPanel& p) {
    for (int64_t i = 0; i < 16 * p.tokens; ++i) p.sums[i] = 0;
    for (int row = 0; row < 16; row += kLanes) {
      rows(p, row);
      const Vec bias = p.bias == nullptr ? S::zero() : S::load_bf16(p.bias + row);
      for (int64_t m = 0; m < p.tokens; ++m)
        S::store(p.y + m * p.ldy + row, finish(p, row, S::load(p.sums + 16 * m + row), bias));
    }
  }
};

template <typename S>
constexpr FloatPanelKernels make_float_panel_kernels() {
  return {.mxfp8 = FloatPanels<S, Format::kMxfp8>::multiply,
          .nvfp4 = FloatPanels<S, Format::kNvfp4>::multiply,
          .fp8_row = FloatPanels<S, Format::kFp8Row>::multiply,
          .fp8_block = FloatPanels<S, Format::kFp8Block>::multiply};
}

}  // namespace nibble::ops
