// The second half of shared_up behind products that are left as float32.
#pragma once

#include "ops/ctx.h"
#include "ops/swiglu.h"

namespace nibble::ops::gpu {

// u [T, F] bf16 = sigmoid(g . h) swiglu(y), on the device, without a g 1 in
// the place of its sigmoid; y [T, 2F] f32 (of relu^2 [T, F]), h [T, H] bf16, g [H].
void weigh_up(Ctx& cx, const Tensor& u, const Tensor& h, const float* y, const uint16_t* gate,
              const Swiglu& act);

}  // namespace nibble::ops::gpu
