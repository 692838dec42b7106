// SwiGLU of CUDA rows that multiply by mma.sync.
#pragma once

#include "ops/swiglu.h"

namespace nibble::ops::gpu {

__device__ __forceinline__ float swiglu(float gate, float up, const Swiglu& act) {
  // fminf drops NaN: a weight that is none must show.
  const float g = gate > act.limit ? act.limit : gate;
  const float v = up > act.limit ? act.limit : up < -act.limit ? -act.limit : up;
  return g / (1 + __expf(-act.alpha * g)) * (v + act.shift);
}

// Swiglu::is_relu2(), for device code.
__device__ __forceinline__ bool has_no_gate(const Swiglu& act) { return act.alpha == 0; }
__device__ __forceinline__ float relu2(float up) { return up <= 0 ? 0 : up * up; }

}  // namespace nibble::ops::gpu
