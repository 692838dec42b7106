// A unit of kTiles16x64 (16 rows x 64 k, formats/layout.h) as operand A of SM12x's block-scaled mma
// with E4M3 activations, whose order is lane_order.h's. A lane 4 g + p has rows g and g + 8.
//
//   MXFP4          the codes as they lie: two shifts and four ANDs a half; scales of blocks
//   MXFP8          bytes as they lie; scales of blocks
//   FP8 by row     bytes as they lie, under scales of 1; the row's goes to the epilogue
//   NVFP4          scale times code, an eighth of it, rounded to E4M3 once more, by a table
//                  (e2m1_as_e4m3.cuh); the row's float32, times 8, to the epilogue
#pragma once

#include "cuda/bf16.cuh"
#include "cuda/mma_sm12x.cuh"
#include "ops/gpu_matmul/e2m1_as_e4m3.cuh"
#include "ops/gpu_matmul/lane_order.h"

namespace nibble::ops::gpu::sm12x {

using cuda::sm12x::Body, cuda::sm12x::OperandA, cuda::sm12x::Values;

// Scales of both halves of a unit, bytes 0 and 1, from its four of rows g and g + 8.
__device__ __forceinline__ uint32_t scales_of_halves(uint32_t scales) {
  return __byte_perm(scales, 0, threadIdx.x & 1 ? 0x4431 : 0x4420);
}

// Operands of one unit, or of its halves one by one (kIsHalf), and what adds their products with a
// lane's bytes of 8 columns. kTableBytes: of shared memory that make_table() fills, whose address
// take() is given.
template <Format kFormat>
struct Operands;

template <>
struct Operands<Format::kMxfp4> {
  static constexpr bool kIsHalf = false;
  static constexpr int kTableBytes = 0;
  static constexpr float kSumFactor = 1;
  OperandA a[2];
  uint32_t scales;

  // `codes`: of the lane's first bytes, `scales_at`: of the unit's.
  __device__ __forceinline__ void take(uint32_t codes, uint32_t scales_at, uint32_t) {
    const uint4 q = cuda::load_shared_16(codes);
    scales = scales_of_halves(cuda::load_shared_4(scales_at + threadIdx.x % 32 / 4 * 4));
    const uint2 rows[2] = {{q.x, q.y}, {q.z, q.w}};
#pragma unroll
    for (int b = 0; b < 2; ++b)
      a[b] = {{codes_of_word(rows[b].x, 0), codes_of_word(rows[b].y, 0),
               codes_of_word(rows[b].x, 1), codes_of_word(rows[b].y, 1)}};
  }
  template <Body kBody, int kHalf>
  __device__ __forceinline__ void add(float (&d)[4], uint2 x) const {
    cuda::sm12x::mma_e4m3<Values::kE2m1, kBody, kHalf>(d, a[kHalf], x, scales);
  }
};

struct ByteOperands {
  static constexpr bool kIsHalf = false;
  static constexpr int kTableBytes = 0;
  static constexpr float kSumFactor = 1;
  OperandA a[2];

  __device__ __forceinline__ void take_codes(uint32_t codes) {
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const uint4 q = cuda::load_shared_16(codes + 512 * b);
      a[b] = {{q.x, q.y, q.z, q.w}};
    }
  }
};

template <>
struct Operands<Format::kMxfp8> : ByteOperands {
  uint32_t scales;

  __device__ __forceinline__ void take(uint32_t codes, uint32_t scales_at, uint32_t) {
    take_codes(codes);
    scales = scales_of_halves(cuda::load_shared_4(scales_at + threadIdx.x % 32 / 4 * 4));
  }
  template <Body kBody, int kHalf>
  __device__ __forceinline__ void add(float (&d)[4], uint2 x) const {
    cuda::sm12x::mma_e4m3<Values::kE4m3, kBody, kHalf>(d, a[kHalf], x, scales);
  }
};

template <>
struct Operands<Format::kFp8Row> : ByteOperands {
  __device__ __forceinline__ void take(uint32_t codes, uint32_t, uint32_t) { take_codes(codes); }
  template <Body kBody, int kHalf>
  __device__ __forceinline__ void add(float (&d)[4], uint2 x) const {
    cuda::sm12x::mma_e4m3<Values::kE4m3, kBody, 0>(d, a[kHalf], x, 0x7f7f7f7fu);
  }
};

// Of one half: two of four tiles, beside a warp's sums, would not fit in registers.
template <>
struct Operands<Format::kNvfp4> {
  static constexpr bool kIsHalf = true;
  static constexpr int kLines = kNarrowLines<Format::kNvfp4>;
  static constexpr int kTableBytes = (kLines + 1) * 8;
  static constexpr float kSumFactor = kNvfp4Narrowed;
  OperandA a;

  template <int kHalf>
  __device__ __forceinline__ void take(uint32_t codes, uint32_t scales_at, uint32_t table) {
    const uint2 q = cuda::load_shared_8(codes + 8 * kHalf);
    const uint32_t s = cuda::load_shared_4(scales_at + threadIdx.x % 32 / 4 * 8 + 4 * kHalf);
    const uint32_t ones = cuda::load_shared_4(table + kLines * 8);
#pragma unroll
    for (int row = 0; row < 2; ++row) {  // two blocks of 16 each
      const uint2 first = cuda::load_shared_8(at_eighth(s, row, table));
      const uint2 last = cuda::load_shared_8(at_eighth(s, row + 2, table));
      expand(row == 0 ? q.x : q.y, first, last, ones, a.v[row], a.v[row + 2]);
    }
  }
  template <Body kBody>
  __device__ __forceinline__ void add(float (&d)[4], uint2 x) const {
    cuda::sm12x::mma_e4m3<Values::kE4m3, kBody, 0>(d, a, x, 0x7f7f7f7fu);
  }
};

// By all threads of a block, to be seen behind its next barrier.
template <Format kFormat>
__device__ __forceinline__ void make_table(char* table) {
  constexpr int kBytes = Operands<kFormat>::kTableBytes;
  if constexpr (kBytes > 0)
    for (int i = threadIdx.x; i < kBytes; i += blockDim.x)
      table[i] = i < kBytes - 8 ? static_cast<char>(magnitude_of_line<kFormat>(i / 8, i % 8)) : 1;
}

}  // namespace nibble::ops::gpu::sm12x
