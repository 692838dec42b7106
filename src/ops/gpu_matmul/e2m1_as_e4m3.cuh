// E2M1 codes of a unit as E4M3, by a table in shared memory: a line of eight magnitudes for every
// scale that a block may have, of which PRMT takes those of the codes.
#pragma once

#include "cuda/fp8.cuh"
#include "cuda/mma_digits.cuh"
#include "formats/format.h"

namespace nibble::ops::gpu {

// Lines of the table, then one of ones: of shifts, or of E4M3 scales but NaN.
template <Format kFormat>
inline constexpr int kNarrowLines = kFormat == Format::kNvfp4 ? 127 : 15;
inline constexpr float kNvfp4Narrowed = 8;  // what NVFP4's lines are divided by

// Bits of E4M3 of m times the line's factor, with the sign set, m the e2m1 magnitude of index i:
// 2^(line - 8), or of NVFP4 an eighth of the E4M3 `line`.
template <Format kFormat>
__device__ __forceinline__ uint32_t magnitude_of_line(int line, int i) {
  if (i == 0) return 0x80;
  const int twice = i < 4 ? i : (i == 4 ? 4 : i == 5 ? 6 : i == 6 ? 8 : 12);  // 2 m
  const float factor = kFormat == Format::kNvfp4
                           ? __int_as_float(line << 20) * (0x1p120f / kNvfp4Narrowed)
                           : __int_as_float((127 + line - 8) << 23);
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
      : "=h"(pair)
      : "f"(0.f), "f"(factor / 2 * static_cast<float>(twice)));
  return 0x80 | (pair & 0xff);
}

// Eight weights: `line` the magnitudes with the sign set, which positive ones lose again: PRMT
// gives the sign of the byte it selects, 0, where bit 3 of a nibble is set. Shifts go by dot
// products: PRMT and LOP3 share their pipe with shifts, and it binds.
__device__ __forceinline__ void expand(uint32_t w, uint2 line, uint32_t ones, uint32_t& low,
                                       uint32_t& high) {
  const uint32_t m = w & 0x77777777u;
  low = cuda::byte_permute(line.x, line.y, m) - cuda::byte_permute(ones, ones, w) * 128u;
  high = cuda::byte_permute(line.x, line.y, cuda::upper_half(m)) -
         cuda::byte_permute(ones, ones, cuda::upper_half(w)) * 128u;
}

// The same of two blocks of 16, low's first two bytes and high's of `first`.
__device__ __forceinline__ void expand(uint32_t w, uint2 first, uint2 last, uint32_t ones,
                                       uint32_t& low, uint32_t& high) {
  constexpr uint32_t kHalves = 0x7610;
  const uint32_t m = w & 0x77777777u, upper = cuda::upper_half(m);
  low = cuda::byte_permute(cuda::byte_permute(first.x, first.y, m),
                           cuda::byte_permute(last.x, last.y, m), kHalves) -
        cuda::byte_permute(ones, ones, w) * 128u;
  high = cuda::byte_permute(cuda::byte_permute(first.x, first.y, upper),
                            cuda::byte_permute(last.x, last.y, upper), kHalves) -
         cuda::byte_permute(ones, ones, cuda::upper_half(w)) * 128u;
}

// `at` + 8 times byte i of w.
__device__ __forceinline__ uint32_t at_eighth(uint32_t w, int i, uint32_t at) {
  uint32_t y;
  asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(y) : "r"(w), "r"(8u << 8 * i), "r"(at));
  return y;
}

}  // namespace nibble::ops::gpu
