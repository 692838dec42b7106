// E4M3 in registers: pairs in 16 bits, the first in the low byte, become pairs of f16 (exactly).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/bf16.cuh"

namespace nibble::cuda {

__device__ __forceinline__ uint32_t f16_of_e4m3(uint16_t pair) {
  uint32_t f16;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(f16) : "h"(pair));
  return f16;
}
// Of the low and the high half of a word.
__device__ __forceinline__ uint32_t f16_of_e4m3_lo(uint32_t word) {
  return f16_of_e4m3(static_cast<uint16_t>(word));
}
__device__ __forceinline__ uint32_t f16_of_e4m3_hi(uint32_t word) {
  return f16_of_e4m3(static_cast<uint16_t>(word >> 16));
}

__device__ __forceinline__ uint32_t pack_f16(float lo, float hi) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
  return pair;
}
__device__ __forceinline__ float2 values_of_f16(uint32_t pair) {
  float2 v;
  asm("{\n.reg .f16 lo, hi;\nmov.b32 {lo, hi}, %2;\ncvt.f32.f16 %0, lo;\ncvt.f32.f16 %1, hi;\n}"
      : "=f"(v.x), "=f"(v.y)
      : "r"(pair));
  return v;
}
// Exact: E4M3 has 4 significant bits.
__device__ __forceinline__ uint32_t bf16_of_e4m3_lo(uint32_t word) {
  const float2 v = values_of_f16(f16_of_e4m3_lo(word));
  return pack_bf16(v.x, v.y);
}
__device__ __forceinline__ uint32_t bf16_of_e4m3_hi(uint32_t word) {
  const float2 v = values_of_f16(f16_of_e4m3_hi(word));
  return pack_bf16(v.x, v.y);
}
// What E4M3 cannot hold becomes its largest.
__device__ __forceinline__ uint32_t e4m3_pair(float lo, float hi) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(hi), "f"(lo));
  return pair;
}
// The same of E5M2.
__device__ __forceinline__ uint32_t e5m2_pair(float lo, float hi) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(hi), "f"(lo));
  return pair;
}
// What f16 cannot hold becomes its largest.
__device__ __forceinline__ uint32_t f16_of_bf16(uint32_t pair) {
  constexpr float kLargest = 65504;
  const auto held = [](float x) { return fabsf(x) <= kLargest ? x : copysignf(kLargest, x); };
  const float lo = bf16_lo(pair), hi = bf16_hi(pair);
  return pack_f16(isnan(lo) ? lo : held(lo), isnan(hi) ? hi : held(hi));
}

}  // namespace nibble::cuda
