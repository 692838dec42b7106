// Dense products with NVFP4 or FP8 weights in kTiles16x64: y [T, N] f32 = x [T, K] W^T + b, and of
// pairs of rows u [T, N / 2] bf16 = swiglu(y).
#pragma once

#include <cstdint>

#include "ops/ctx.h"
#include "ops/norm/add_norm.h"
#include "ops/swiglu.h"
#include "ops/weight.h"

namespace nibble::ops::gpu {

using UnitProductFn = void(Ctx& cx, const Weight& w, const uint16_t* x, int64_t tokens, float* y);
UnitProductFn multiply_few;    // unit_gemv.cuh
UnitProductFn multiply_split;  // gemm_split_sm90.cuh: up to 256 tokens
// Of norm.h, which they make: one token in the same launch.
void norm_multiply_few(Ctx& cx, const AddNorm& norm, const Weight& w, float* y);
void norm_swiglu_few(Ctx& cx, const AddNorm& norm, const Weight& w, const Swiglu& act, uint16_t* u);

using UnitSwigluFn = void(Ctx& cx, const Weight& w, const uint16_t* x, int64_t tokens,
                          const Swiglu& act, uint16_t* u);
UnitSwigluFn swiglu_split;

}  // namespace nibble::ops::gpu
