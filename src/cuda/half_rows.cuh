// Rows of f16 in shared memory as operands of matrix instructions, and their products with rows of
// float32 in TF32, which holds f16 exactly.
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/mma_bf16.cuh"
#include "cuda/mma_tf32.cuh"

namespace nibble::cuda {

// Rows of `kCols` columns, so far apart that load_matrices() meets no bank twice.
template <int kCols>
struct HalfRows {
  static constexpr int kPitch = 2 * kCols + 16, kPieces = kCols / 8;
  uint32_t at;
  // Brings `rows` of kRows rows, `stride` elements apart, and zeros for the rest.
  template <int kThreads, int kRows>
  __device__ __forceinline__ void bring(const uint16_t* from, int64_t stride, int rows) const {
    for (int i = threadIdx.x; i < kRows * kPieces; i += kThreads) {
      const int row = i / kPieces, piece = i % kPieces;
      const uint32_t to = at + row * kPitch + piece * 16;
      if (row < rows)
        async_copy_16(to, from + row * stride + piece * 8);
      else
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
    }
  }
  // Rows row .. row + 15 and columns col .. col + 15, as a of mma.m16n8k16.
  __device__ __forceinline__ void load(uint32_t (&r)[4], int row, int col) const {
    const int lane = threadIdx.x % 32;
    load_matrices(r, at + (row + lane % 16) * kPitch + (col + lane / 16 * 8) * 2);
  }
  // The same as b: r[0], r[1] of columns row .. row + 7 and k col .. col + 15, then the next 8.
  __device__ __forceinline__ void load_b(uint32_t (&r)[4], int row, int col) const {
    const int lane = threadIdx.x % 32;
    load_matrices(r, at + (row + lane / 16 * 8 + lane % 8) * kPitch + (col + lane / 8 % 2 * 8) * 2);
  }
  // Transposed, as a: its rows are columns col .., its k rows row ..
  __device__ __forceinline__ void load_turned(uint32_t (&r)[4], int row, int col) const {
    const int lane = threadIdx.x % 32;
    load_matrices_transposed(
        r, at + (row + lane / 16 * 8 + lane % 8) * kPitch + (col + lane / 8 % 2 * 8) * 2);
  }
  // Transposed, as b: r[0], r[1] of columns col .. col + 7 and k row .. row + 15, then the next 8.
  __device__ __forceinline__ void load_turned_b(uint32_t (&r)[4], int row, int col) const {
    const int lane = threadIdx.x % 32;
    load_matrices_transposed(r, at + (row + lane % 16) * kPitch + (col + lane / 16 * 8) * 2);
  }
};

// d[n] += the 16 x 16 in f16 of `a` times rows k .. k + 15 of `b` [][kPitch], columns 8n ..
template <int kPitch, int kTilesOfN>
__device__ __forceinline__ void multiply_rows(float (&d)[kTilesOfN][4], const F16Rows& a,
                                              const float* b, int k) {
  const int g = threadIdx.x % 32 / 4, p = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float* const at = b + (k + 8 * i + 2 * p) * kPitch + g;
#pragma unroll
    for (int n = 0; n < kTilesOfN; ++n) a.multiply(d[n], i, at[8 * n], at[kPitch + 8 * n]);
  }
}

// The pairs of a lane in 16 rows by 8 kTilesOfN columns: take(index of the tile and of the pair's
// first element, row, column).
template <int kTilesOfN, class Take>
__device__ __forceinline__ void each_pair(const Take& take) {
  const int g = threadIdx.x % 32 / 4, p = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < kTilesOfN; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) take(n, 2 * i, g + 8 * i, 8 * n + 2 * p);
}

// The power of two that `most`, which is not negative, reaches, and one over it.
struct PowerOfTwo {
  float power, inverse;
};
__device__ __forceinline__ PowerOfTwo power_of(float most) {
  const unsigned exponent = min(max(__float_as_uint(most) >> 23, 1u), 253u);
  return {__uint_as_float(exponent << 23), __uint_as_float((254 - exponent) << 23)};
}
// By a warp: of its largest value. `most`: of a lane.
__device__ __forceinline__ PowerOfTwo largest_power(float most) {
  return power_of(__uint_as_float(__reduce_max_sync(0xffffffff, __float_as_uint(most))));
}

__device__ __forceinline__ void put_tf32(float* to, float x, float y) {
  *reinterpret_cast<float2*>(to) = {to_tf32(x), to_tf32(y)};
}

}  // namespace nibble::cuda
