// Dense products with NVFP4 or FP8 weights in kTiles16x64: y [T, N] f32 = x [T, K] W^T + b, and of
// pairs of rows u [T, N / 2] bf16 = swiglu(y), of single ones u [T, N] = max(y, 0)^2.
#pragma once

#include <cstdint>

#include "ops/ctx.h"
#include "ops/norm/add_norm.h"
#include "ops/scratch.h"
#include "ops/swiglu.h"
#include "ops/weight.h"

namespace nibble::ops::gpu {

using UnitProductFn = void(Ctx& cx, const Weight& w, const uint16_t* x, int64_t tokens, float* y);
// unit_gemv.cuh. Up to 16 tokens with long rows K goes in slices, which take slice_scratch_rows()
// rows of N float32 (gemm_sm90.h).
UnitProductFn multiply_few;
UnitProductFn multiply_split;  // gemm_split_sm90.cuh: up to 256 tokens
// Of norm.h, which they make: one token in the same launch.
void norm_multiply_few(Ctx& cx, const AddNorm& norm, const Weight& w, float* y);
void norm_swiglu_few(Ctx& cx, const AddNorm& norm, const Weight& w, const Swiglu& act, uint16_t* u);

void relu2_few(Ctx& cx, const Weight& w, const uint16_t* x, int64_t tokens, uint16_t* u);

// One token, by digits (unit_one.cuh), with the norm in the same launch where that fits.
UnitProductFn multiply_one;
void norm_multiply_one(Ctx& cx, const AddNorm& norm, const Weight& w, float* y);
void norm_swiglu_one(Ctx& cx, const AddNorm& norm, const Weight& w, const Swiglu& act, uint16_t* u);

void relu2_one(Ctx& cx, const Weight& w, const uint16_t* x, uint16_t* u);

using UnitSwigluFn = void(Ctx& cx, const Weight& w, const uint16_t* x, int64_t tokens,
                          const Swiglu& act, uint16_t* u);
UnitSwigluFn swiglu_split;
// gemm_stream_sm90.cuh, NVFP4 alone: take stream_parts() float32 (stream_plan.h).
void swiglu_stream(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x, int64_t tokens,
                   const Swiglu& act, uint16_t* u);
void multiply_stream(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x, int64_t tokens,
                     float* y);

}  // namespace nibble::ops::gpu
