// A unit of kTiles16x64 (16 rows x 64 k, formats/layout.h) as bf16 in registers: the A operands of
// four steps of 16 k, for mma.sync and wgmma alike. What differs by format is the scales: Unit.
//
// A lane 4g + p decodes rows g and g + 8. Values come out times 2^-32, so that large scales fit;
// sums take it back (kSumFactor). NVFP4's are exact: 2 bits times 4; a row's float32 multiplies its
// sums. MXFP4's are exact for scales from 2^-60 to 2^33.
#pragma once

#include <cstdint>

#include "cuda/mma_digits.cuh"
#include "formats/format.h"

namespace nibble::ops::gpu {

inline constexpr float kSumFactor = 0x1p32f;

// Pairs (k, k + 1) of bf16, k = 8j, from nibbles j and j + 4 of a word: the sign, and e2m1's three
// bits at the end of bf16's exponent, which makes value * 2^-126. One product moves a nibble to
// both places: multiplies run beside the integer pipe, which binds here.
__device__ __forceinline__ void spread_codes(uint32_t w, uint32_t (&out)[4]) {
  constexpr uint32_t kKept = 0x81c081c0u, kEven = 0x000f000fu, kOdd = 0x00f000f0u;
  const uint32_t high = w >> 8;
  out[0] = (w & kEven) * 0x1040u & kKept;
  out[1] = (w & kOdd) * 0x0104u & kKept;
  out[2] = (high & kEven) * 0x1040u & kKept;
  out[3] = (high & kOdd) * 0x0104u & kKept;
}
__device__ __forceinline__ void scale_pair(uint32_t& pair, uint32_t factor) {
  asm("mul.bf16x2 %0, %0, %1;" : "+r"(pair) : "r"(factor));
}
// All four under one scale.
__device__ __forceinline__ void dequantize(uint32_t w, uint32_t scale, uint32_t (&out)[4]) {
  spread_codes(w, out);
#pragma unroll
  for (int j = 0; j < 4; ++j) asm("mul.bf16x2 %0, %0, %1;" : "+r"(out[j]) : "r"(scale));
}

// The four steps of 16 k of a unit's codes, without scales: value * 2^-126.
__device__ __forceinline__ void spread_unit(const uint4& q, uint32_t (&a)[4][4]) {
  const uint32_t words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t v[4];
    spread_codes(words[i], v);
    const int step = i / 2 * 2, row = i % 2;
    a[step][row] = v[0], a[step][row + 2] = v[1];
    a[step + 1][row] = v[2], a[step + 1][row + 2] = v[3];
  }
}

// The scales of rows g and g + 8 of a unit in shared memory.
template <class Unit>
__device__ __forceinline__ typename Unit::Scales scales_of(const char* unit) {
  using Scales = typename Unit::Scales;
  return *reinterpret_cast<const Scales*>(unit + 512 + threadIdx.x % 32 / 4 * sizeof(Scales));
}

template <Format kFormat>
struct Unit;

template <>
struct Unit<Format::kMxfp4> {
  static constexpr int kBytes = 544, kScaleBytes = 32;
  static constexpr bool kHasRowScales = false;
  using Scales = uint32_t;

  static __device__ __forceinline__ Scales load_scales(uint32_t unit) {
    return cuda::load_shared_4(unit + 512 + threadIdx.x % 32 / 4 * 4);
  }
  // 2^(s - 127) * 2^94 as a pair of bf16, s the byte of `scales` at bit `at`; 161: infinite, above:
  // NaN.
  template <int kAt>
  static __device__ __forceinline__ uint32_t factor(uint32_t scales) {
    const uint32_t both = __byte_perm(scales, 0, 0x4040 | kAt / 8 << 8 | kAt / 8);
    return __vminu2(both * 0x80u + 0x2f002f00u, 0x7fc07fc0u);
  }
  // 32 k, the first or the second of the unit: words of rows g and g + 8; the A registers of two
  // steps of 16.
  template <int kHalf>
  static __device__ __forceinline__ void decode(uint32_t low, uint32_t high, const Scales& scales,
                                                uint32_t (&a0)[4], uint32_t (&a1)[4]) {
    uint32_t v[4];
    dequantize(low, factor<16 * kHalf>(scales), v);
    a0[0] = v[0], a0[2] = v[1], a1[0] = v[2], a1[2] = v[3];
    dequantize(high, factor<16 * kHalf + 8>(scales), v);
    a0[1] = v[0], a0[3] = v[1], a1[1] = v[2], a1[3] = v[3];
  }
};

template <>
struct Unit<Format::kNvfp4> {
  static constexpr int kBytes = 576, kScaleBytes = 64;
  static constexpr bool kHasRowScales = true;
  using Scales = uint2;

  static __device__ __forceinline__ Scales load_scales(uint32_t unit) {
    return cuda::load_shared_8(unit + 512 + threadIdx.x % 32 / 4 * 8);
  }
  // 2^94 times the E4M3 of rows g and g + 8 in the low and the high half, of the 16 k whose bytes
  // are 2 kBlock and 2 kBlock + 1 of `scales`. E4M3's bits are bf16's for 2^-120 of the value.
  template <int kBlock>
  static __device__ __forceinline__ uint32_t factors(uint32_t scales) {
    uint32_t both = __byte_perm(scales, 0, kBlock == 0 ? 0x4140 : 0x4342) * 16;
    scale_pair(both, 0x7b807b80u);  // 2^120
    scale_pair(both, 0x6e806e80u);  // 2^94
    return both;
  }
  template <int kHalf>
  static __device__ __forceinline__ void decode(uint32_t low, uint32_t high, const Scales& scales,
                                                uint32_t (&a0)[4], uint32_t (&a1)[4]) {
    const uint32_t s = kHalf == 0 ? scales.x : scales.y;
    const uint32_t f0 = factors<0>(s), f1 = factors<1>(s);
    const uint32_t first0 = __byte_perm(f0, 0, 0x1010), last0 = __byte_perm(f0, 0, 0x3232);
    const uint32_t first1 = __byte_perm(f1, 0, 0x1010), last1 = __byte_perm(f1, 0, 0x3232);
    uint32_t v[4];
    spread_codes(low, v);
    scale_pair(v[0], first0), scale_pair(v[1], first0);
    scale_pair(v[2], first1), scale_pair(v[3], first1);
    a0[0] = v[0], a0[2] = v[1], a1[0] = v[2], a1[2] = v[3];
    spread_codes(high, v);
    scale_pair(v[0], last0), scale_pair(v[1], last0);
    scale_pair(v[2], last1), scale_pair(v[3], last1);
    a0[1] = v[0], a0[3] = v[1], a1[1] = v[2], a1[3] = v[3];
  }
};

}  // namespace nibble::ops::gpu
