// Products whose K is cut into slices leave the sums of each by itself; these are added here.
#pragma once

#include <cstdint>

#include "ops/ctx.h"

namespace nibble::ops::gpu {

// y [floats] = parts [slices, floats], in the order of slices; floats % 4 == 0.
void add_slices(Ctx& cx, float* y, const float* parts, int slices, int64_t floats);

}  // namespace nibble::ops::gpu
