// Warp-wide matrix instructions on bf16 and f16, and on the 8x8 matrices of 16-bit elements that
// they take. Lane l: g = l / 4, p = l % 4. Layouts: PTX ISA, "Matrix fragments for mma.m16n8k16".
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace nibble::cuda {

// d [16 rows, 8 columns] += a [16, k 16] b [k 16, 8].
// a0: row g, k 2p and 2p + 1; a1: row g + 8; a2: row g, k 2p + 8 and 2p + 9; a3: row g + 8.
// b0: column g, k 2p and 2p + 1; b1: k 2p + 8 and 2p + 9.
// d[0], d[1]: row g, columns 2p and 2p + 1; d[2], d[3]: row g + 8.
__device__ __forceinline__ void mma_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same in f16.
__device__ __forceinline__ void mma_f16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                        uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Row g, columns 2p and 2p + 1 of an 8x8 matrix -> those of its transpose.
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t pair) {
  uint32_t turned;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(pair));
  return turned;
}

// Four 8x8 matrices from shared memory: lane l gives the address of row l % 8 of matrix l / 8 (16
// bytes, aligned) and receives in r[i] row g, columns 2p and 2p + 1 of matrix i.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address));
}
// The same, each matrix transposed.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4],
                                                         uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address));
}

}  // namespace nibble::cuda
