// The product of the general CUDA rows, left as float32. Kernel: product_any.cuh.
#pragma once

#include <cstdint>

#include "ops/ctx.h"
#include "ops/routing.h"
#include "ops/weight.h"

namespace nibble::ops::gpu {

// y [T, N] f32 = x [T, K] W^T + b, on the device; x bf16.
void multiply_any(Ctx& cx, const Weight& w, const uint16_t* x, int64_t tokens, float* y);
// y [T * K, N] f32: each slot's row of x [T * K, K] with its expert.
void multiply_any(Ctx& cx, const Weight& w, const uint16_t* x, const Routing& routing, float* y);

}  // namespace nibble::ops::gpu
