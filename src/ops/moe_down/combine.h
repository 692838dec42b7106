// The second half of moe_down where its products are left by slot.
#pragma once

#include "ops/ctx.h"
#include "ops/routing.h"

namespace nibble::ops::gpu {

// d [T, H] f32 = sum over choices of p * y[slot]: the first half of them in order, the second half
// in order, both; y [T * K, H] f32, on the device.
void combine(Ctx& cx, const Tensor& d, const float* y, const Routing& routing);
// The same in order of choice throughout, y in bf16.
void combine(Ctx& cx, const Tensor& d, const uint16_t* y, const Routing& routing);
// That of few tokens, all of whose rows are asked for at the same time.
void combine_few(Ctx& cx, const Tensor& d, const uint16_t* y, const Routing& routing);

}  // namespace nibble::ops::gpu
