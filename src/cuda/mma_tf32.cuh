// Warp-wide products of float32 values in TF32, and of such values with f16 ones. Lane l: g = l /
// 4, p = l % 4. Layouts: PTX ISA, "Matrix fragments for mma.m16n8k8".
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace nibble::cuda {

// x rounded to 11 significant bits: to nearest, ties away from zero.
__device__ __forceinline__ float to_tf32(float x) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
}

// d [16 rows, 8 columns] += a [16, k 8] b [k 8, 8] of values in TF32.
// a0: row g, k p; a1: row g + 8; a2: row g, k p + 4; a3: row g + 8. b0: column g, k p; b1: k p + 4.
// d[0], d[1]: row g, columns 2p and 2p + 1; d[2], d[3]: row g + 8.
__device__ __forceinline__ void mma_tf32(float (&d)[4], float a0, float a1, float a2, float a3,
                                         float b0, float b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(__float_as_uint(a0)), "r"(__float_as_uint(a1)), "r"(__float_as_uint(a2)),
        "r"(__float_as_uint(a3)), "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

// Pairs of f16, low half first; TF32 holds each exactly.
__device__ __forceinline__ uint32_t pack_f16(float lo, float hi) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
  return pair;
}
__device__ __forceinline__ float2 f16_values(uint32_t pair) {
  float2 v;
  asm("{\n"
      ".reg .b16 lo, hi;\n"
      "mov.b32 {lo, hi}, %2;\n"
      "cvt.f32.f16 %0, lo;\n"
      "cvt.f32.f16 %1, hi;\n"
      "}"
      : "=f"(v.x), "=f"(v.y)
      : "r"(pair));
  return v;
}

// Two steps of 8 k with a [16, k 16] in f16, as mma.m16n8k16 and load_matrices() have it: step i
// takes k 8i + 2p for p and 8i + 2p + 1 for p + 4, and so must b.
struct F16Rows {
  float a[2][4];
  __device__ __forceinline__ explicit F16Rows(const uint32_t (&r)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 first = f16_values(r[2 * i]), second = f16_values(r[2 * i + 1]);
      a[i][0] = first.x, a[i][1] = second.x, a[i][2] = first.y, a[i][3] = second.y;
    }
  }
  __device__ __forceinline__ void multiply(float (&d)[4], int i, float b0, float b1) const {
    mma_tf32(d, a[i][0], a[i][1], a[i][2], a[i][3], b0, b1);
  }
};

}  // namespace nibble::cuda
