// Rows of activations as columns of B of gemm_narrow_sm90.cuh: what they are, how its blocks make
// them, and how a block brings those of its groups to shared memory. Those of NVFP4:
// narrow_blocks_sm90.cuh.
#pragma once

#include "cuda/bf16.cuh"
#include "cuda/fp8.cuh"
#include "cuda/mma_digits.cuh"
#include "cuda/mma_digits_nvfp4.cuh"
#include "ops/gpu_matmul/e4m3_pairs.h"
#include "ops/gpu_matmul/gemm_fp8_sm90.cuh"
#include "ops/gpu_matmul/gemv.cuh"

namespace nibble::ops::gpu::sm90 {

inline constexpr int kNarrowColumns = 32;  // of activations in a group, at most

// Of the warps that multiply.
__device__ __forceinline__ void narrow_barrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(kGemvThreads) : "memory");
}

// Rows of activations as columns of B, kOfRow each, in kPlanes matrices whose products are added:
// codes [rows, K / 16, kOfRow, 16]. kUnitBytes: of the weights that they meet. kRebases: whether
// those are relative to a row's least scale.
//
// High and low, made by all blocks. Products with weights as the table has them are 2^12 too large,
// columns 2^7.
struct PairColumns : E4m3Pairs {
  static constexpr bool kIsMade = true, kRebases = false, kHasBlocks = false;
  static constexpr int kPlanes = 1, kOfRow = 2, kUnitBytes = cuda::kUnitBytes;
  static constexpr float kBack = 0x1p-19f;
  const uint16_t* x;  // [rows, K] bf16, what they are made of
  int rows;
  uint32_t* counter;  // zero
  __device__ __forceinline__ float factor(int row) const { return __ldcg(factors + row); }
};
struct E4m3Columns {
  static constexpr bool kIsMade = false, kRebases = true, kHasBlocks = false;
  static constexpr int kPlanes = 1, kOfRow = 1, kUnitBytes = cuda::kUnitBytes;
  const uint8_t* codes;
  const float* scales;  // [rows], or none: scale_all
  float scale_all;
  const uint8_t* row_exponents;  // of the weight
  __device__ __forceinline__ float factor(int row) const {
    return scales == nullptr ? scale_all : __ldcg(scales + row);
  }
};

template <class X>
inline constexpr int kNarrowGroupRows = kNarrowColumns / X::kOfRow;
template <class X>
__device__ __forceinline__ int group_columns(const Group& group) {
  return (X::kOfRow * group.rows + 7) / 8 * 8;
}

// Even or odd columns of a lane's 8 as pairs: of four lanes with 32 of them, lane p has bytes 4 p
// .. of E4M3 order. Low is what E4M3 leaves of an element, in E5M2 or 16 times that in E4M3.
struct PairWords {
  uint32_t high = 0, low = 0;
  __device__ __forceinline__ PairWords(const uint4& v, int odd, float inverse,
                                       bool low_in_e5m2 = false) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto element = [&](uint32_t pair) {
        return (odd == 0 ? cuda::bf16_lo(pair) : cuda::bf16_hi(pair)) * inverse;
      };
      const float a = element(words[2 * half]), b = element(words[2 * half + 1]);
      const uint32_t pair = cuda::e4m3_pair(a, b);
      const float2 f = cuda::values_of_f16(cuda::f16_of_e4m3(static_cast<uint16_t>(pair)));
      const float2 rest{a - f.x, b - f.y};
      high |= pair << 16 * half;
      low |= (low_in_e5m2 ? cuda::e5m2_pair(rest.x, rest.y)
                          : cuda::e4m3_pair(rest.x * 16, rest.y * 16))
             << 16 * half;
    }
    high = cuda::transpose_quad(high, ~0u);
    low = cuda::transpose_quad(low, ~0u);
  }
};
// The largest magnitude of eight, in bf16's bits: those order as integers do.
__device__ __forceinline__ uint32_t largest_of(const uint4& v) {
  uint32_t most = 0;
  for (const uint32_t pair : {v.x, v.y, v.z, v.w})
    most = max(most, max(pair >> 16 & 0x7fff, pair & 0x7fff));
  return most;
}
// The exponent of what puts a row's largest magnitude, in bf16's bits, into [128, 256).
__device__ __forceinline__ uint32_t exponent_of(uint32_t largest) {
  return max(largest >> 7, 16u);  // elements below 2^-111 lose bits
}
__device__ __forceinline__ float inverse_of(uint32_t exponent) {
  return __uint_as_float((261 - min(exponent, 254u)) << 23);
}
// Products to what they stand for; `back`: less 2^-7, what columns are too large by.
__device__ __forceinline__ float factor_of(uint32_t exponent, float back) {
  return __uint_as_float(exponent == 255 ? 0x7fc00000 : exponent << 23) * back;
}

// Rows of activations in two E4M3 a column, by all warps that multiply of all blocks. Two warps
// take a row, a lane 8 columns of 256: until the largest is known their bf16 wait in shared memory,
// each thread's in 16 bytes from `memory` on and every 16 * kGemvThreads behind.
__device__ __forceinline__ void make_columns(const PairColumns& to, int cols, uint32_t memory,
                                             uint32_t* largest) {
  constexpr int kRows = kGemvWarps / 2;  // of a block at a time
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto each = [&](const auto& do_8) {
    uint32_t at = memory + threadIdx.x * 16;
#pragma unroll 1
    for (int first = warp % 2 * 256; first < cols; first += 512, at += kGemvThreads * 16)
      do_8(first + 8 * lane, at);
  };
  const auto meet_pair = [&] { asm volatile("bar.sync %0, 64;" ::"r"(2 + warp / 2) : "memory"); };
  for (int row = blockIdx.x + warp / 2 * gridDim.x; row < to.rows; row += kRows * gridDim.x) {
    const uint16_t* const from = to.x + int64_t{row} * cols;
    each([&](int column, uint32_t at) {
      copy_16_or_zeros(at, from + min(column, cols - 8), column < cols ? 16 : 0);
    });
    asm volatile("cp.async.wait_all;" ::: "memory");
    uint32_t most = 0;
    each([&](int, uint32_t at) { most = max(most, largest_of(cuda::load_shared_16(at))); });
    most = __reduce_max_sync(~0u, most);
    if (lane == 0) largest[warp] = most;
    meet_pair();
    const uint32_t exponent = exponent_of(max(most, largest[warp ^ 1]));
    const float inverse = inverse_of(exponent);
    if (warp % 2 == 0 && lane == 0) to.factors[row] = factor_of(exponent, PairColumns::kBack);
    uint8_t* const codes = to.codes + int64_t{row} * PairColumns::kOfRow * cols + lane % 4 * 4;
    each([&](int column, uint32_t at) {
      const uint4 v = cuda::load_shared_16(at);
      const PairWords even(v, 0, inverse), odd(v, 1, inverse);
      if (column >= cols) return;
      auto* const place =
          reinterpret_cast<uint32_t*>(codes + column / 32 * 32 * PairColumns::kOfRow);
      place[0] = even.high, place[4] = even.low;
      place[8] = odd.high, place[12] = odd.low;
    });
    meet_pair();  // before the next row's largest
  }
}

// A group's activations and their factors, by all warps that multiply: 8 columns of B by 64 of K a
// warp's turn. Where rows lie is asked for first, of all at the same time.
template <class X, class Op>
__device__ __forceinline__ void fetch_columns(const X& x, const Op& op, const Group& group,
                                              int units, uint32_t to, uint32_t factors) {
  constexpr int kEights = kNarrowColumns / 8, kOfRow = X::kOfRow;
  const int lane = threadIdx.x % 32, columns = group_columns<X>(group);
  int row_of[kEights];
#pragma unroll
  for (int i = 0; i < kEights; ++i)
    row_of[i] = op.row_of(group.row0 + min((8 * i + lane % 8) / kOfRow, group.rows - 1));
#pragma unroll
  for (int i = 0; i < kEights; ++i) {
    if (8 * i >= columns) break;
    const int column = 8 * i + lane % 8;
    const auto* const from =
        x.codes + (int64_t{row_of[i]} * units * 4 * kOfRow + column % kOfRow) * 16;
#pragma unroll 1
    for (int unit = threadIdx.x / 32; unit < units; unit += kGemvWarps) {
      const int piece = unit * 4 + lane / 8;
      if (column / kOfRow < group.rows)
        copy_16(to + (piece * columns + column) * 16, from + piece * kOfRow * 16);
    }
  }
  if (threadIdx.x < group.rows)
    cuda::store_shared_float(factors + threadIdx.x * 4,
                             x.factor(op.row_of(group.row0 + threadIdx.x)));
}

}  // namespace nibble::ops::gpu::sm90
