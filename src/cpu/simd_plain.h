// Vectors of 4 floats in plain C++ (the compiler's vectors: SSE2, NEON or whatever else there is),
// for CPUs that none of the other simd_*.h fit; those offer the same functions.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "cpu/simd.h"
#include "formats/bf16.h"
#include "formats/fp8.h"
#include "formats/mxfp4.h"

namespace nibble::cpu {

struct Plain {
  using Vec = float __attribute__((vector_size(16)));
  static constexpr int kLanes = 4;
  // Accumulators of a matrix product tile: kTileRows x kTileTokens, in registers.
  static constexpr int kTileRows = 2;
  static constexpr int kTileTokens = 4;

  SIMD_FN Vec zero() { return Vec{}; }
  SIMD_FN Vec set1(float x) { return Vec{x, x, x, x}; }
  SIMD_FN Vec load(const float* p) {
    Vec v;
    std::memcpy(&v, p, sizeof(v));
    return v;
  }
  SIMD_FN void store(float* p, Vec v) { std::memcpy(p, &v, sizeof(v)); }
  SIMD_FN void stream(float* p, Vec v) { store(p, v); }
  SIMD_FN void fence() {}
  SIMD_FN Vec load_bf16(const uint16_t* p) {
    return Vec{bf16_to_float(p[0]), bf16_to_float(p[1]), bf16_to_float(p[2]), bf16_to_float(p[3])};
  }
  // Rounds twice: few such CPUs fuse.
  SIMD_FN Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
  SIMD_FN Vec add(Vec a, Vec b) { return a + b; }
  SIMD_FN Vec sub(Vec a, Vec b) { return a - b; }
  SIMD_FN Vec mul(Vec a, Vec b) { return a * b; }
  SIMD_FN Vec div(Vec a, Vec b) { return a / b; }
  // As x86's: of a NaN and a number, the second operand.
  SIMD_FN Vec min(Vec a, Vec b) { return a < b ? a : b; }
  SIMD_FN Vec max(Vec a, Vec b) { return a > b ? a : b; }
  // Magnitudes below 2^22: the sum's last place is 1.
  SIMD_FN Vec round(Vec a) { return (a + set1(0x1.8p23f)) - set1(0x1.8p23f); }
  // 2^n for whole n within [-126, 127].
  SIMD_FN Vec pow2(Vec n) {
    using Words = int32_t __attribute__((vector_size(16)));
    return std::bit_cast<Vec>((__builtin_convertvector(n, Words) + 127) << 23);
  }
  SIMD_FN float sum(Vec v) { return (v[0] + v[2]) + (v[1] + v[3]); }
  SIMD_FN float largest(Vec v) { return std::max(std::max(v[0], v[2]), std::max(v[1], v[3])); }

  // 2^(e - 127); 0 is 2^-127 and 255 NaN.
  SIMD_FN Vec scales(const uint8_t* e) {
    return Vec{e8m0_to_float(e[0]), e8m0_to_float(e[1]), e8m0_to_float(e[2]), e8m0_to_float(e[3])};
  }
  static constexpr float kE4m3Unit = 1;
  SIMD_FN Vec load_e4m3(const uint8_t* p) {
    return Vec{kE4m3[p[0]], kE4m3[p[1]], kE4m3[p[2]], kE4m3[p[3]]};
  }

  // The lanes 0, 2, .. of a and then of b, and the lanes 1, 3, ..
  SIMD_FN Vec even(Vec a, Vec b) { return __builtin_shufflevector(a, b, 0, 2, 4, 6); }
  SIMD_FN Vec odd(Vec a, Vec b) { return __builtin_shufflevector(a, b, 1, 3, 5, 7); }

  // v[i] lane j becomes v[j] lane i, for kLanes vectors.
  SIMD_FN void transpose(Vec* v) {
    const Vec a = __builtin_shufflevector(v[0], v[1], 0, 4, 2, 6);
    const Vec b = __builtin_shufflevector(v[0], v[1], 1, 5, 3, 7);
    const Vec c = __builtin_shufflevector(v[2], v[3], 0, 4, 2, 6);
    const Vec d = __builtin_shufflevector(v[2], v[3], 1, 5, 3, 7);
    v[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
    v[1] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
    v[2] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
    v[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
  }

  // A block of 32 MXFP4 weights: out[0..3] hold elements 0, 2, .. 30, out[4..7] 1, 3, .. 31.
  SIMD_FN void decode_block(const uint8_t* codes, float scale, Vec* out) {
    for (int i = 0; i < 4; ++i, codes += 4) {
      const Vec low = {kE2m1[codes[0] & 15], kE2m1[codes[1] & 15], kE2m1[codes[2] & 15],
                       kE2m1[codes[3] & 15]};
      const Vec high = {kE2m1[codes[0] >> 4], kE2m1[codes[1] >> 4], kE2m1[codes[2] >> 4],
                        kE2m1[codes[3] >> 4]};
      out[i] = low * set1(scale);
      out[4 + i] = high * set1(scale);
    }
  }
};

}  // namespace nibble::cpu
