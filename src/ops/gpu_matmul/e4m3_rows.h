// Activations in E4M3 (--activations fp8): what GPU kernels multiply, and the same rounding on
// CPUs, where it only shows what it costs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "formats/format.h"
#include "formats/fp8.h"
#include "ops/scratch.h"

namespace nibble::ops {

// The scale of moe_up's output: gpt-oss clamps it to |u| <= 7 * 8 = 448 / 8, which needs no look at
// the values. What a larger limit makes is held at 448.
inline constexpr float kExpertScale = 1.f / 8;

// Weights whose inputs some GPU's kernels take so: in MXFP8 a GB10's alone.
constexpr bool takes_e4m3(Format weights) {
  return weights == Format::kMxfp4 || weights == Format::kNvfp4 || weights == Format::kMxfp8 ||
         weights == Format::kFp8Row;
}

// On the GPU: codes [rows, cols] in E4M3 order (gemm_fp8_sm90.cuh), scales [rows]; a value is its
// row's scale times its code.
struct E4m3Rows {
  uint8_t* codes;
  float* scales;
};
inline E4m3Rows take_e4m3_rows(Scratch& scratch, int64_t rows, int64_t cols) {
  auto* const codes = scratch.take<uint8_t>(rows * cols);
  return {codes, scratch.take<float>(rows)};
}

// The scale of a row whose largest magnitude is `largest`, and what its values are multiplied by
// before they are rounded.
struct E4m3Scale {
  float scale, inverse;
};
inline E4m3Scale e4m3_scale(float largest) {
  return {largest / kE4m3Largest, largest > 0 ? kE4m3Largest / largest : 0};
}

// Rounds a row of n values to E4M3; `scale` 0: with a scale of its own.
inline void round_to_e4m3(float* x, int64_t n, float scale) {
  E4m3Scale s{scale, 1 / scale};
  if (scale == 0) {
    float largest = 0;
    for (int64_t i = 0; i < n; ++i) largest = std::fmax(largest, std::fabs(x[i]));
    s = e4m3_scale(largest);
  }
  for (int64_t i = 0; i < n; ++i) x[i] = s.scale * kE4m3[e4m3_from_float(x[i] * s.inverse)];
}

}  // namespace nibble::ops
