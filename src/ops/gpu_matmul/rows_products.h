// Dense products of few tokens with BF16 rows: y [T, N] f32 = x [T, K] W^T + b.
#pragma once

#include <cstdint>

#include "ops/ctx.h"
#include "ops/weight.h"

namespace nibble::ops::gpu {

void multiply_rows(Ctx& cx, const Weight& w, const uint16_t* x, int64_t tokens, float* y);

}  // namespace nibble::ops::gpu
