// Dense products of 2 to 8 tokens with NVFP4 weights by unit_f16_sm90.cuh: y [T, N] f32 = x [T, K]
// W^T + b, and of pairs of rows u [T, N / 2] bf16 = swiglu(y). They take f16_parts() float32.
#pragma once

#include <cstdint>

#include "ops/ctx.h"
#include "ops/norm/add_norm.h"
#include "ops/scratch.h"
#include "ops/swiglu.h"
#include "ops/weight.h"

namespace nibble::ops::gpu {

void multiply_f16(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x, int64_t tokens,
                  float* y);
// Of norm.h, which they make.
void norm_multiply_f16(Ctx& cx, Scratch& scratch, const AddNorm& norm, const Weight& w, float* y);
void norm_swiglu_f16(Ctx& cx, Scratch& scratch, const AddNorm& norm, const Weight& w,
                     const Swiglu& act, uint16_t* u);

}  // namespace nibble::ops::gpu
