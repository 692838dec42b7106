// Rows of activations as columns of B of gemm_narrow_sm90.cuh: what they are, how its blocks make
// them, and how a block brings those of its groups to shared memory.
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

// Rows of activations as columns of B, kOfRow each, in kPlanes matrices whose products are added:
// codes [rows, K / 16, kPlanes, kOfRow, 16]. kUnitBytes: of the weights that they meet. kRebases:
// whether those are relative to a row's least scale.
struct MadeColumns : E4m3Pairs {
  static constexpr bool kIsMade = true, kRebases = false;
  static constexpr int kOfRow = 2;
  const uint16_t* x;  // [rows, K] bf16, what they are made of
  int rows;
  uint32_t* counter;  // zero
  __device__ __forceinline__ float factor(int row) const { return __ldcg(factors + row); }
};
// High and low. Products with weights as the table has them are 2^12 too large, columns 2^7.
struct PairColumns : MadeColumns {
  static constexpr bool kHasBlocks = false;
  static constexpr int kPlanes = 1, kUnitBytes = cuda::kUnitBytes;
  static constexpr float kBack = 0x1p-19f;
};
// For NVFP4, whose scales meet the sums of blocks: the first 16 of 32 k with zeros for the others,
// and the last 16; high, and in a plane of its own low, in E5M2. In the order of K in which
// half_codes() makes codes, which are 2^6 too small. Of 8 columns a lane has two of the same 16 k.
struct BlockColumns : MadeColumns {
  static constexpr bool kHasBlocks = true;
  static constexpr int kPlanes = 2, kUnitBytes = cuda::kNvfp4UnitBytes;
  static constexpr float kBack = 0x1p-1f;
  const float* row_scales;  // of the weights
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

// Whose row of a group a column is, and which of its columns.
struct ColumnPlace {
  int token, part;
};
template <class X>
__device__ __forceinline__ ColumnPlace place_of(int column) {
  if constexpr (X::kHasBlocks)
    return {column / 8 * 4 + column / 4 % 2 * 2 + column % 2, column / 2 % 2};
  return {column / X::kOfRow, column % X::kOfRow};
}
template <class X>
inline constexpr int kNarrowGroupRows = kNarrowColumns / X::kOfRow;
template <class X>
__device__ __forceinline__ int group_columns(const Group& group) {
  return (X::kOfRow * group.rows + 7) / 8 * 8;
}

// Even or odd columns of a lane's 8 as pairs: of four lanes with 32 of them, lane p has bytes 4 p
// .. of E4M3 order.
struct PairWords {
  uint32_t high = 0, low = 0;
  template <bool kHasBlocks>
  __device__ __forceinline__ static uint32_t rest(float a, float b) {
    return kHasBlocks ? cuda::e5m2_pair(a, b) : cuda::e4m3_pair(a * 16, b * 16);
  }
  template <class X>
  __device__ __forceinline__ PairWords(const X&, const uint4& v, int odd, float inverse) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto element = [&](uint32_t pair) {
        return (odd == 0 ? cuda::bf16_lo(pair) : cuda::bf16_hi(pair)) * inverse;
      };
      const float a = element(words[2 * half]), b = element(words[2 * half + 1]);
      const uint32_t pair = cuda::e4m3_pair(a, b);
      const float2 f = cuda::values_of_f16(cuda::f16_of_e4m3(static_cast<uint16_t>(pair)));
      high |= pair << 16 * half;
      low |= rest<X::kHasBlocks>(a - f.x, b - f.y) << 16 * half;
    }
    high = cuda::transpose_quad(high, ~0u);
    low = cuda::transpose_quad(low, ~0u);
  }
};
// 32 columns of a row: `to` is this lane's first word.
__device__ __forceinline__ void store_pairs(const PairColumns&, uint8_t* to, const PairWords& even,
                                            const PairWords& odd) {
  auto* const place = reinterpret_cast<uint32_t*>(to);
  place[0] = even.high, place[4] = even.low;
  place[8] = odd.high, place[12] = odd.low;
}
__device__ __forceinline__ void store_pairs(const BlockColumns&, uint8_t* to, const PairWords& even,
                                            const PairWords& odd) {
  constexpr uint32_t kFirst = 0x00ff00ff;  // bytes of the first 16 k
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    auto* const place = reinterpret_cast<uint32_t*>(to) + 16 * half;
    const uint32_t order = half == 0 ? 0x6420 : 0x7531;
    const uint32_t high = cuda::byte_permute(even.high, odd.high, order);
    const uint32_t low = cuda::byte_permute(even.low, odd.low, order);
    place[0] = high & kFirst, place[4] = high & ~kFirst;
    place[8] = low & kFirst, place[12] = low & ~kFirst;
  }
}

// Rows of activations in two E4M3 a column, by all warps that multiply of all blocks. Two warps
// take a row, a lane 8 columns of 256: until the largest is known their bf16 wait in shared memory,
// each thread's in 16 bytes from `memory` on and every 16 * kGemvThreads behind.
template <class X>
__device__ __forceinline__ void make_columns(const X& to, int cols, uint32_t memory,
                                             uint32_t* largest) {
  constexpr int kRows = kGemvWarps / 2;  // of a block at a time
  constexpr int kOfRow = X::kPlanes * X::kOfRow;
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
    uint32_t most = 0;  // magnitudes of bf16 order as integers do
    each([&](int, uint32_t at) {
      const uint4 v = cuda::load_shared_16(at);
      for (const uint32_t pair : {v.x, v.y, v.z, v.w})
        most = max(most, max(pair >> 16 & 0x7fff, pair & 0x7fff));
    });
    most = __reduce_max_sync(~0u, most);
    if (lane == 0) largest[warp] = most;
    meet_pair();
    most = max(most, largest[warp ^ 1]);
    const uint32_t exponent = max(most >> 7, 16u);  // elements below 2^-111 lose bits
    const float inverse = __uint_as_float((261 - min(exponent, 254u)) << 23);
    if (warp % 2 == 0 && lane == 0)
      to.factors[row] = __uint_as_float(exponent == 255 ? 0x7fc00000 : exponent << 23) * X::kBack;
    uint8_t* const codes = to.codes + int64_t{row} * kOfRow * cols + lane % 4 * 4;
    each([&](int column, uint32_t at) {
      const uint4 v = cuda::load_shared_16(at);
      const PairWords even(to, v, 0, inverse), odd(to, v, 1, inverse);
      if (column >= cols) return;
      store_pairs(to, codes + column / 32 * (32 * kOfRow), even, odd);
    });
    meet_pair();  // before the next row's largest
  }
}

// A group's activations and their factors, by all warps that multiply: 8 columns of B by 64 of K a
// warp's turn. Where rows lie is asked for first, of all at the same time.
template <class X, class Op>
__device__ __forceinline__ void fetch_columns(const X& x, const Op& op, const Group& group,
                                              int units, uint32_t to, uint32_t factors) {
  constexpr int kEights = kNarrowColumns / 8, kOfRow = X::kPlanes * X::kOfRow;
  const int lane = threadIdx.x % 32, columns = group_columns<X>(group);
  int row_of[kEights];
#pragma unroll
  for (int i = 0; i < kEights; ++i)
    row_of[i] = op.row_of(group.row0 + min(place_of<X>(8 * i + lane % 8).token, group.rows - 1));
#pragma unroll
  for (int i = 0; i < kEights; ++i) {
    if (8 * i >= columns) break;
    const int column = 8 * i + lane % 8;
    const ColumnPlace place = place_of<X>(column);
    const auto* const from = x.codes + (int64_t{row_of[i]} * units * 4 * kOfRow + place.part) * 16;
#pragma unroll 1
    for (int unit = threadIdx.x / 32; unit < units; unit += kGemvWarps) {
      const int piece = unit * 4 + lane / 8;
      if (place.token >= group.rows) continue;
#pragma unroll
      for (int plane = 0; plane < X::kPlanes; ++plane)
        copy_16(to + ((plane * units * 4 + piece) * columns + column) * 16,
                from + (piece * kOfRow + plane * X::kOfRow) * 16);
    }
  }
  if (threadIdx.x < group.rows)
    cuda::store_shared_float(factors + threadIdx.x * 4,
                             x.factor(op.row_of(group.row0 + threadIdx.x)));
}

}  // namespace nibble::ops::gpu::sm90
