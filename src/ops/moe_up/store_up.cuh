// SwiGLU or relu^2 as the epilogue of the general CUDA rows of moe_up and mlp_up.
#pragma once

#include "cuda/bf16.cuh"
#include "ops/moe_up/swiglu.cuh"

namespace nibble::ops::gpu {

struct StoreUp {
  uint16_t* u;  // [slots, width]
  int64_t width;
  Swiglu act;

  __device__ __forceinline__ void store(int slot, int row, float gate, float up,
                                        bool has_second) const {
    if (!has_no_gate(act)) {
      u[slot * width + row / 2] = cuda::bf16_bits(swiglu(gate, up, act));
      return;
    }
    u[slot * width + row] = cuda::bf16_bits(relu2(gate));
    if (has_second) u[slot * width + row + 1] = cuda::bf16_bits(relu2(up));
  }
};

}  // namespace nibble::ops::gpu
