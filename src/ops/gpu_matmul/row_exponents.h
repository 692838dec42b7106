// Whether MXFP4 weights are exact in E4M3: a weight m * 2^s (m of e2m1, s its block's exponent) is
// m * 2^(s - least - 8) in E4M3, exactly, while s is at most 14 above the least exponent of its
// row. The kernels are gemm_fp8_sm90.cuh's.
#pragma once

#include <cstdint>

#include "ops/ctx.h"
#include "ops/weight.h"

namespace nibble::ops {

inline constexpr int kE4m3Span = 14;

// Bf16 activations multiply weights in E5M2 instead (gemm_narrow_sm90.cuh), which has no room for
// blocks whose exponent is above this: a scale of 2.
inline constexpr int kMostE5m2Exponent = 128;

struct ExponentMisfits {
  int64_t rows;       // that cannot be: their exponents span more than kE4m3Span, or leave no room
                      // for the row's factor in float32
  int64_t too_large;  // rows with an exponent above kMostE5m2Exponent; 255, NaN, is none
};

// Writes to least [experts, N], where there is one, the least exponent (E8M0) of each row of `w`,
// which lies in kTiles16x64 on the GPU. Waits for the GPU.
using FindRowExponentsFn = ExponentMisfits(const Ctx& cx, const Weight& w, uint8_t* least);
namespace gpu {
FindRowExponentsFn find_row_exponents;
}  // namespace gpu
}  // namespace nibble::ops
