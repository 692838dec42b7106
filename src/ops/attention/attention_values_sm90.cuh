// Weights times values by wgmma: weights in registers, values in shared memory as they come, a key
// a row, which the instruction transposes (sm_90a only).
#pragma once

#include "cuda/mma_sm90.cuh"

namespace nibble::ops::gpu {

// d [64][N] (+)= a [64][16] b, b [K][N] rows in panels of 64 columns.
#define NIBBLE_MULTIPLY_VALUES(n, regs, outs, a0, a1, a2, a3, b, acc)                        \
  __device__ __forceinline__ void multiply_values(float(&d)[n / 2], const uint32_t(&a)[4],   \
                                                  uint64_t bd, int is_added) {               \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " acc                                     \
                 ", 0;\n"                                                                    \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" regs "}, {" a0 \
                 ", " a1 ", " a2 ", " a3 "}, " b ", p, 1, 1, 1;\n}"                          \
                 : outs                                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(bd), "r"(is_added));      \
  }
NIBBLE_MULTIPLY_VALUES(64, NIBBLE_R32, NIBBLE_O32, "%32", "%33", "%34", "%35", "%36", "%37")
NIBBLE_MULTIPLY_VALUES(128, NIBBLE_R64, NIBBLE_O64, "%64", "%65", "%66", "%67", "%68", "%69")
NIBBLE_MULTIPLY_VALUES(256, NIBBLE_R128, NIBBLE_O128, "%128", "%129", "%130", "%131", "%132",
                       "%133")
#undef NIBBLE_MULTIPLY_VALUES

// The descriptor of such a b, 1024-byte aligned but for whole rows: rows of 128 bytes lie in a
// panel as cuda::sm90::swizzled_128() has them, columns beyond 64 in the next.
__device__ __forceinline__ uint64_t swizzled_columns(uint32_t address, uint32_t panel_bytes) {
  const uint64_t rows = cuda::sm90::swizzled_128(address);
  return (rows & ~(uint64_t{0x3fff} << 16)) | uint64_t{panel_bytes >> 4} << 16;
}

}  // namespace nibble::ops::gpu
