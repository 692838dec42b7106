// The block-scaled matrix instruction of SM12x (GB10), with three bodies of one contract:
//   native  the instruction, where the target has it (sm_120a, sm_121a and their families)
//   fast    for other GPUs: f16 products, exact but for the order and rounding of their float32 sum
//   exact   for other GPUs: what SM12x adds up bit by bit (mma_sm12x_model.h), slow
// So kernels for a GB10 run, and are tested, on an H200. Layouts: PTX ISA 9.0, section 9.7.14.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/fp8.cuh"
#include "cuda/mma_bf16.cuh"
#include "cuda/mma_sm12x_model.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200 && __CUDA_ARCH__ < 1300 && \
    (defined(__CUDA_ARCH_SPECIFIC__) || defined(__CUDA_ARCH_FAMILY_SPECIFIC__))
#define NIBBLE_HAS_BLOCK_SCALED_MMA 1
#else
#define NIBBLE_HAS_BLOCK_SCALED_MMA 0
#endif

namespace nibble::cuda::sm12x {

enum class Body { kFast, kExact };   // of the emulation
enum class Values { kE2m1, kE4m3 };  // of A

// Operands of a lane, l = 4 g + p, of A [16 rows, k 32] in E2M1 or E4M3 and B [k 32, 8 columns] in
// E4M3.
// a: row g, row g + 8, then the same rows at k 16 on; a byte is a code of E4M3, or holds one of
//    E2M1 in its bits 5..2: byte j of a[0] is k = 4 p + j, of a[2] 16 + 4 p + j.
// b: column g, k = 4 p + j, then 16 + 4 p + j.
// scale_a: E8M0 of row g in lanes 4 g, of row g + 8 in lanes 4 g + 1, at byte kByte; of A's block.
// That of B's is 1 throughout. Which k is which is the caller's, as long as A and B agree.
struct OperandA {
  uint32_t v[4];
};

// 2^(code - 127), 255: NaN.
__device__ __forceinline__ float e8m0(uint32_t code) {
  return __uint_as_float(code == 255 ? 0x7fffffffu : code == 0 ? 0x00400000u : code << 23);
}

// Codes at bits 5..2 of bytes 0, 1 and of bytes 2, 3 as f16 pairs: value * 2^-14.
__device__ __forceinline__ uint32_t f16_of_e2m1(uint32_t word, uint32_t selectors) {
  const uint32_t spread = __byte_perm(word, 0, selectors);
  return (spread & 0x20002000u) << 2 | (spread & 0x1c001c00u) >> 1;
}

// Bytes 0 and 1, or 2 and 3, of a word of A as an f16 pair, E2M1 times 2^-14.
template <Values kValues, int kHalf>
__device__ __forceinline__ uint32_t f16_of_a(uint32_t word) {
  if constexpr (kValues == Values::kE2m1)
    return f16_of_e2m1(word, kHalf == 0 ? 0x1404 : 0x3424);
  else
    return kHalf == 0 ? f16_of_e4m3_lo(word) : f16_of_e4m3_hi(word);
}

// noinline: dozens of copies in a loop would only take the compiler's time.
template <Values kValues>
static __device__ __noinline__ float4 fast_mma(float4 d, uint4 a, uint2 b, uint32_t scale_a) {
  constexpr float kFactor = kValues == Values::kE2m1 ? 16384.f : 1.f;
  const int quad = threadIdx.x & 28;
  const float r0 = e8m0(__shfl_sync(~0u, scale_a, quad)) * kFactor;
  const float r1 = e8m0(__shfl_sync(~0u, scale_a, quad + 1)) * kFactor;
  float t[4] = {};
  mma_f16(t, f16_of_a<kValues, 0>(a.x), f16_of_a<kValues, 0>(a.y), f16_of_a<kValues, 1>(a.x),
          f16_of_a<kValues, 1>(a.y), f16_of_e4m3_lo(b.x), f16_of_e4m3_hi(b.x));
  mma_f16(t, f16_of_a<kValues, 0>(a.z), f16_of_a<kValues, 0>(a.w), f16_of_a<kValues, 1>(a.z),
          f16_of_a<kValues, 1>(a.w), f16_of_e4m3_lo(b.y), f16_of_e4m3_hi(b.y));
  return {fmaf(t[0], r0, d.x), fmaf(t[1], r0, d.y), fmaf(t[2], r1, d.z), fmaf(t[3], r1, d.w)};
}

template <Values kValues>
static __device__ __noinline__ float4 exact_mma(float4 d, uint4 a, uint2 b, uint32_t scale_a) {
  const int lane = threadIdx.x & 31, quad = lane & ~3;
  float sums[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // row g, row g + 8, of two columns each
    const uint32_t low = i / 2 ? a.y : a.x, high = i / 2 ? a.w : a.z;
    const int column = 8 * (lane & 3) + 4 * (i % 2);
    const auto of_a = [&](int k) {
      const uint32_t word = __shfl_sync(~0u, k / 16 ? high : low, quad + k / 4 % 4);
      if constexpr (kValues == Values::kE2m1)
        return e2m1_term(word >> (8 * (k % 4) + 2) & 15);
      else
        return e4m3_term(word >> 8 * (k % 4) & 255);
    };
    const auto of_b = [&](int k) {
      const uint32_t word = __shfl_sync(~0u, k / 16 ? b.y : b.x, column + k / 4 % 4);
      return e4m3_term(word >> 8 * (k % 4) & 255);
    };
    const uint32_t scale = __shfl_sync(~0u, scale_a, quad + i / 2);
    sums[i] = dot_k32(of_a, of_b, scale, 127u, sums[i]);
  }
  return {sums[0], sums[1], sums[2], sums[3]};
}

// d += a b, d as mma's: rows g (d[0], d[1]) and g + 8, columns 2 p and 2 p + 1.
#define NIBBLE_MMA_E4M3(type)                                                                 \
  asm volatile(                                                                               \
      "mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32." type  \
      ".e4m3.f32.ue8m0 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, %10, " \
      "{%12, 0}, %11, {0, 0};"                                                                \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                        \
      : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.x), "r"(b.y), "r"(scale_a), \
        "r"(0x7f7f7f7fu), "n"(kByte))
template <Values kValues, Body kBody, int kByte>
__device__ __forceinline__ void mma_e4m3(float (&d)[4], const OperandA& a, uint2 b,
                                         uint32_t scale_a) {
#if NIBBLE_HAS_BLOCK_SCALED_MMA
  if constexpr (kValues == Values::kE2m1)
    NIBBLE_MMA_E4M3("e2m1");
  else
    NIBBLE_MMA_E4M3("e4m3");
#else
  const uint4 words = {a.v[0], a.v[1], a.v[2], a.v[3]};
  const float4 old = {d[0], d[1], d[2], d[3]};
  const uint32_t scale = scale_a >> 8 * kByte & 255;
  const float4 sum = kBody == Body::kExact ? exact_mma<kValues>(old, words, b, scale)
                                           : fast_mma<kValues>(old, words, b, scale);
  d[0] = sum.x, d[1] = sum.y, d[2] = sum.z, d[3] = sum.w;
#endif
}
#undef NIBBLE_MMA_E4M3

// Two values as codes of E2M1, the first in bits 3..0: the nearest, ties to the even one, held
// at 6.
__device__ __forceinline__ uint32_t e2m1_pair(float lo, float hi) {
#if NIBBLE_HAS_BLOCK_SCALED_MMA
  uint32_t codes;
  asm("{\n.reg .b8 pair;\ncvt.rn.satfinite.e2m1x2.f32 pair, %2, %1;\ncvt.u32.u8 %0, pair;\n}"
      : "=r"(codes)
      : "f"(lo), "f"(hi));
  return codes;
#else
  const auto code = [](float x) {
    const float m = fabsf(x);
    const uint32_t index = (m > .25f) + (m >= .75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) +
                           (m >= 3.5f) + (m > 5.f);
    return index | __float_as_uint(x) >> 31 << 3;
  };
  return code(lo) | code(hi) << 4;
#endif
}

// E2M1 by E2M1, A [16 rows, k 64] and B [k 64, 8 columns]: nibble j of a.v[0] is row g, k = 8 p +
// j, of a.v[2] 32 + 8 p + j, of a.v[1] and a.v[3] row g + 8; b.x and b.y likewise of column g.
// Scales in E8M0 are of 32 k each (MXFP4), in E4M3 of 16 (NVFP4); scale_a: of row g in lanes 4 g,
// of row g + 8 in lanes 4 g + 1, scale_b: of column g in lanes 4 g; byte i is the i-th.
enum class Scales { kE8m0, kE4m3 };

// Codes at bits 3..0 of bytes 0, 1 (or 4 on: of what is shifted by 4) as an f16 pair.
__device__ __forceinline__ uint32_t f16_of_nibbles(uint32_t word, int shift) {
  const uint32_t pair = word >> shift & 0x000f000fu;
  uint32_t f16 = (pair & 0x00080008u) << 12 | (pair & 0x00070007u) << 9;
  asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(f16) : "r"(0x74007400u));  // 2^14
  return f16;
}
__device__ __forceinline__ uint32_t times_f16(uint32_t pair, uint32_t factor) {
  asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(factor));
  return pair;
}

// E4M3 scales go into the factors, which f16 holds exactly; E8M0 ones behind sums of 32 k.
template <Scales kScales>
static __device__ __noinline__ float4 fast_mma_e2m1(float4 d, uint4 a, uint2 b, uint32_t scale_a,
                                                    uint32_t scale_b) {
  constexpr bool kIsE4m3 = kScales == Scales::kE4m3;
  const int lane = threadIdx.x & 31, quad = lane & 28, p = lane & 3;
  const uint32_t row = __shfl_sync(~0u, scale_a, quad), next = __shfl_sync(~0u, scale_a, quad + 1);
  const uint32_t column = __shfl_sync(~0u, scale_b, quad);
  const uint32_t c0 = __shfl_sync(~0u, scale_b, 8 * p), c1 = __shfl_sync(~0u, scale_b, 8 * p + 4);
  float sums[4] = {d.x, d.y, d.z, d.w};
  for (int half = 0; half < 2; ++half) {
    const uint32_t words[3] = {half ? a.z : a.x, half ? a.w : a.y, half ? b.y : b.x};
    const auto factor = [&](uint32_t scales) {  // of the lane's 16 k, twice
      const uint32_t code = scales >> 8 * (2 * half + p / 2) & 127;
      return kIsE4m3 ? f16_of_e4m3_lo(code | code << 8) : 0x3c003c00u;
    };
    const uint32_t factors[3] = {factor(row), factor(next), factor(column)};
    const auto pair = [&](int of, int shift) {
      return times_f16(f16_of_nibbles(words[of], shift), factors[of]);
    };
    float t[4] = {};
    for (int shift = 0; shift < 16; shift += 8)
      mma_f16(t, pair(0, shift), pair(1, shift), pair(0, shift + 4), pair(1, shift + 4),
              pair(2, shift), pair(2, shift + 4));
    const auto scale = [&](uint32_t of_row, uint32_t of_column) {
      return kIsE4m3 ? 1.f : e8m0(of_row >> 8 * half & 255) * e8m0(of_column >> 8 * half & 255);
    };
    sums[0] = fmaf(t[0], scale(row, c0), sums[0]), sums[1] = fmaf(t[1], scale(row, c1), sums[1]);
    sums[2] = fmaf(t[2], scale(next, c0), sums[2]), sums[3] = fmaf(t[3], scale(next, c1), sums[3]);
  }
  return {sums[0], sums[1], sums[2], sums[3]};
}

template <Scales kScales>
static __device__ __noinline__ float4 exact_mma_e2m1(float4 d, uint4 a, uint2 b, uint32_t scale_a,
                                                     uint32_t scale_b) {
  const int lane = threadIdx.x & 31, quad = lane & ~3;
  float sums[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // row g, row g + 8, of two columns each
    const uint32_t low = i / 2 ? a.y : a.x, high = i / 2 ? a.w : a.z;
    const int column = 8 * (lane & 3) + 4 * (i % 2);
    const auto of_a = [&](int k) {
      return __shfl_sync(~0u, k / 32 ? high : low, quad + k / 8 % 4) >> 4 * (k % 8) & 15;
    };
    const auto of_b = [&](int k) {
      return __shfl_sync(~0u, k / 32 ? b.y : b.x, column + k / 8 % 4) >> 4 * (k % 8) & 15;
    };
    const uint32_t row_scales = __shfl_sync(~0u, scale_a, quad + i / 2);
    const uint32_t column_scales = __shfl_sync(~0u, scale_b, column);
    const auto term = [&](uint32_t scales, int group) {
      return kScales == Scales::kE4m3 ? e4m3_term(scales >> 8 * group & 127)
                                      : e8m0_term(scales >> 8 * (group / 2) & 255);
    };
    sums[i] = dot_k64(
        of_a, of_b, [&](int group) { return term(row_scales, group); },
        [&](int group) { return term(column_scales, group); }, sums[i]);
  }
  return {sums[0], sums[1], sums[2], sums[3]};
}

#define NIBBLE_MMA_E2M1(vec, type)                                                              \
  asm volatile("mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::" vec                    \
               ".m16n8k64.row.col.f32.e2m1.e2m1.f32." type                                      \
               " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, %10, {0, 0}, " \
               "%11, {0, 0};"                                                                   \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                 \
               : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.x), "r"(b.y),        \
                 "r"(scale_a), "r"(scale_b))
template <Scales kScales, Body kBody>
__device__ __forceinline__ void mma_e2m1(float (&d)[4], const OperandA& a, uint2 b,
                                         uint32_t scale_a, uint32_t scale_b) {
#if NIBBLE_HAS_BLOCK_SCALED_MMA
  if constexpr (kScales == Scales::kE8m0)
    NIBBLE_MMA_E2M1("2X", "ue8m0");
  else
    NIBBLE_MMA_E2M1("4X", "ue4m3");
#else
  const uint4 words = {a.v[0], a.v[1], a.v[2], a.v[3]};
  const float4 old = {d[0], d[1], d[2], d[3]};
  const float4 sum = kBody == Body::kExact
                         ? exact_mma_e2m1<kScales>(old, words, b, scale_a, scale_b)
                         : fast_mma_e2m1<kScales>(old, words, b, scale_a, scale_b);
  d[0] = sum.x, d[1] = sum.y, d[2] = sum.z, d[3] = sum.w;
#endif
}
#undef NIBBLE_MMA_E2M1

}  // namespace nibble::cuda::sm12x
