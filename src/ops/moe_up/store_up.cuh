// SwiGLU as the epilogue of the general CUDA rows of moe_up and mlp_up.
#pragma once

#include "cuda/bf16.cuh"
#include "ops/moe_up/swiglu.cuh"

namespace nibble::ops::gpu {

struct StoreUp {
  uint16_t* u;  // [slots, width]
  int64_t width;
  Swiglu act;

  __device__ __forceinline__ void store(int slot, int row, float gate, float up, bool) const {
    u[slot * width + row / 2] = cuda::bf16_bits(swiglu(gate, up, act));
  }
};

}  // namespace nibble::ops::gpu
