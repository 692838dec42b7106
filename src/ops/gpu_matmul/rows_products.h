// Dense products of few tokens with BF16 rows: y [T, N] f32 = x [T, K] W^T + b, and of pairs of
// rows u [T, N / 2] bf16 = swiglu(y).
#pragma once

#include <cstdint>

#include "ops/ctx.h"
#include "ops/norm/add_norm.h"
#include "ops/scratch.h"
#include "ops/swiglu.h"
#include "ops/weight.h"

namespace nibble::ops::gpu {

// rows_gemv.cuh.
void multiply_rows(Ctx& cx, const Weight& w, const uint16_t* x, int64_t tokens, float* y);
// Of norm.h, which it makes: one token in the same launch, of up to kNormColumns.
void norm_multiply_rows(Ctx& cx, const AddNorm& norm, const Weight& w, float* y);

// gemm_rows_sm90.cuh: up to 64 tokens; take stream_parts() float32 (stream_plan.h).
void multiply_rows_sm90(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x,
                        int64_t tokens, float* y);
void swiglu_rows_sm90(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x, int64_t tokens,
                      const Swiglu& act, uint16_t* u);

}  // namespace nibble::ops::gpu
