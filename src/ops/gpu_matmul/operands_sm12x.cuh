// A unit of kTiles16x64 (16 rows x 64 k, formats/layout.h) as operand A of SM12x's block-scaled
// mma, and activations, whose order is lane_order.h's, as B. A lane 4 g + p has rows g and g + 8.
// With E4M3 activations:
//
//   MXFP4          the codes as they lie: two shifts and four ANDs a half; scales of blocks
//   MXFP8          bytes as they lie; scales of blocks
//   FP8 by row     bytes as they lie, under scales of 1; the row's goes to the epilogue
//   NVFP4          scale times code, an eighth of it, rounded to E4M3 once more, by a table
//                  (e2m1_as_e4m3.cuh); the row's float32, times 8, to the epilogue
//
// With E2M1 activations, which have block scales as the weights do:
//
//   MXFP4          codes and scales as they lie
//   NVFP4          a block of 16 has its codes in four lanes, the instruction's in two: lanes p and
//                  p ^ 2 exchange half of theirs; the row's float32 to the epilogue
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

// A lane's part of 64 k of 8 slots. kBytes, kScaleBytes: of one slot; kSteps: instructions.
template <Values kInputs>
struct Inputs;

template <>
struct Inputs<Values::kE4m3> {
  static constexpr int kBytes = 64, kScaleBytes = 0, kSteps = 2;
  uint4 v;

  // `at`: of the lane's, of 8 slots' codes; `scales_at`: of their scales.
  __device__ __forceinline__ Inputs(uint32_t at, uint32_t) : v(cuda::load_shared_16(at)) {}
  template <int kHalf>
  __device__ __forceinline__ uint2 half() const {
    return kHalf == 0 ? uint2{v.x, v.y} : uint2{v.z, v.w};
  }
};

template <>
struct Inputs<Values::kE2m1> {
  static constexpr int kBytes = 32, kScaleBytes = 4, kSteps = 1;
  uint2 v;
  uint32_t scales;

  __device__ __forceinline__ Inputs(uint32_t at, uint32_t scales_at)
      : v(cuda::load_shared_8(at)),
        scales(cuda::load_shared_4(scales_at + threadIdx.x % 32 / 4 * 4)) {}
};

// Operands of one unit, or of its halves one by one (kIsHalf), and what adds their products with
// Inputs of 8 slots. kTableBytes: of shared memory that make_table() fills, whose address take() is
// given.
template <Format kFormat, Values kInputs>
struct Operands;

template <>
struct Operands<Format::kMxfp4, Values::kE4m3> {
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
  __device__ __forceinline__ void add(float (&d)[4], const Inputs<Values::kE4m3>& x) const {
    cuda::sm12x::mma_e4m3<Values::kE2m1, kBody, kHalf>(d, a[kHalf], x.half<kHalf>(), scales);
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
struct Operands<Format::kMxfp8, Values::kE4m3> : ByteOperands {
  uint32_t scales;

  __device__ __forceinline__ void take(uint32_t codes, uint32_t scales_at, uint32_t) {
    take_codes(codes);
    scales = scales_of_halves(cuda::load_shared_4(scales_at + threadIdx.x % 32 / 4 * 4));
  }
  template <Body kBody, int kHalf>
  __device__ __forceinline__ void add(float (&d)[4], const Inputs<Values::kE4m3>& x) const {
    cuda::sm12x::mma_e4m3<Values::kE4m3, kBody, kHalf>(d, a[kHalf], x.half<kHalf>(), scales);
  }
};

template <>
struct Operands<Format::kFp8Row, Values::kE4m3> : ByteOperands {
  __device__ __forceinline__ void take(uint32_t codes, uint32_t, uint32_t) { take_codes(codes); }
  template <Body kBody, int kHalf>
  __device__ __forceinline__ void add(float (&d)[4], const Inputs<Values::kE4m3>& x) const {
    cuda::sm12x::mma_e4m3<Values::kE4m3, kBody, 0>(d, a[kHalf], x.half<kHalf>(), 0x7f7f7f7fu);
  }
};

// Of one half: two of four tiles, beside a warp's sums, would not fit in registers.
template <>
struct Operands<Format::kNvfp4, Values::kE4m3> {
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

template <>
struct Operands<Format::kMxfp4, Values::kE2m1> {
  static constexpr bool kIsHalf = false;
  static constexpr int kTableBytes = 0;
  static constexpr float kSumFactor = 1;
  OperandA a;
  uint32_t scales;

  __device__ __forceinline__ void take(uint32_t codes, uint32_t scales_at, uint32_t) {
    const uint4 q = cuda::load_shared_16(codes);
    scales = scales_of_halves(cuda::load_shared_4(scales_at + threadIdx.x % 32 / 4 * 4));
    a = {{q.x, q.y, q.z, q.w}};
  }
  template <Body kBody, int>
  __device__ __forceinline__ void add(float (&d)[4], const Inputs<Values::kE2m1>& x) const {
    cuda::sm12x::mma_e2m1<cuda::sm12x::Scales::kE8m0, kBody>(d, a, x.v, scales, x.scales);
  }
};

template <>
struct Operands<Format::kNvfp4, Values::kE2m1> {
  static constexpr bool kIsHalf = false;
  static constexpr int kTableBytes = 0;
  static constexpr float kSumFactor = 1;
  OperandA a;
  uint32_t scales;

  __device__ __forceinline__ void take(uint32_t codes, uint32_t scales_at, uint32_t) {
    const uint4 q = cuda::load_shared_16(codes);
    const uint2 s = cuda::load_shared_8(scales_at + threadIdx.x % 32 / 4 * 8);
    scales = __byte_perm(s.x, s.y, threadIdx.x & 1 ? 0x7531 : 0x6420);
    exchange(q.x, q.z, a.v[0], a.v[2]);
    exchange(q.y, q.w, a.v[1], a.v[3]);
  }
  // A row's words of both halves of 32 k: of each, bytes 0 and 2 are of its first 16, which lanes 0
  // and 1 of four take, 1 and 3 of its last.
  __device__ __forceinline__ static void exchange(uint32_t low, uint32_t high, uint32_t& first,
                                                  uint32_t& second) {
    const bool is_last = threadIdx.x & 2;
    const uint32_t kept = __byte_perm(low, high, is_last ? 0x7531 : 0x6420);
    const uint32_t sent = __byte_perm(low, high, is_last ? 0x6420 : 0x7531);
    const uint32_t got = __shfl_xor_sync(~0u, sent, 2);
    first = __byte_perm(kept, got, 0x5410), second = __byte_perm(kept, got, 0x7632);
  }
  template <Body kBody, int>
  __device__ __forceinline__ void add(float (&d)[4], const Inputs<Values::kE2m1>& x) const {
    cuda::sm12x::mma_e2m1<cuda::sm12x::Scales::kE4m3, kBody>(d, a, x.v, scales, x.scales);
  }
};

// By all threads of a block, to be seen behind its next barrier.
template <Format kFormat, Values kInputs>
__device__ __forceinline__ void make_table(char* table) {
  constexpr int kBytes = Operands<kFormat, kInputs>::kTableBytes;
  if constexpr (kBytes > 0)
    for (int i = threadIdx.x; i < kBytes; i += blockDim.x)
      table[i] = i < kBytes - 8 ? static_cast<char>(magnitude_of_line<kFormat>(i / 8, i % 8)) : 1;
}

}  // namespace nibble::ops::gpu::sm12x
