// SwiGLU of moe_up's CUDA rows that multiply by mma.sync.
#pragma once

#include "ops/moe_up/moe_up.h"

namespace nibble::ops::gpu {

__device__ __forceinline__ float swiglu(float gate, float up, float limit) {
  // fminf drops NaN: a weight that is none must show.
  const float g = gate > limit ? limit : gate;
  const float v = up > limit ? limit : up < -limit ? -limit : up;
  return g / (1 + __expf(-kSwigluAlpha * g)) * (v + 1);
}

}  // namespace nibble::ops::gpu
