// Activations in E2M1 (--activations fp4): what a GB10's kernels multiply, and the same rounding on
// CPUs, where it only shows what it costs. Blocks are those of the weights that they meet: MXFP4's
// of 32 with a scale in E8M0, NVFP4's of 16 with one in E4M3, under a float32 a row.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "formats/format.h"
#include "formats/fp8.h"
#include "formats/mxfp4.h"
#include "formats/nvfp4.h"
#include "ops/gpu_matmul/e4m3_rows.h"
#include "ops/kernel_table.h"

#ifdef __CUDACC__
#define NIBBLE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define NIBBLE_HOST_DEVICE inline
#endif

namespace nibble::ops {

constexpr bool takes_e2m1(Format weights) {
  return weights == Format::kMxfp4 || weights == Format::kNvfp4;
}

// What the inputs of a product with such weights are rounded to under `activations`, of kFp8 and
// kFp4: weights of 8 bits take E4M3 with either. kFloat: neither.
constexpr ActFormat rounded_inputs(ActFormat activations, Format weights) {
  if (activations == ActFormat::kFp4 && takes_e2m1(weights)) return ActFormat::kFp4;
  const bool has_codes = activations == ActFormat::kFp4 || activations == ActFormat::kFp8;
  return has_codes && takes_e4m3(weights) ? ActFormat::kFp8 : ActFormat::kFloat;
}

// On the GPU: a row of cols values is cols / 2 bytes of codes in lane order (lane_order.h), then 4
// bytes of scales for every 64, of which MXFP4 uses two; rows begin at multiples of 16 bytes.
NIBBLE_HOST_DEVICE int64_t e2m1_pitch(int64_t cols) { return (cols / 64 * 36 + 15) / 16 * 16; }

// `bits`: of the largest magnitude of a block, as float32. The least power of two under which it
// is at most 7, which is as near to 6 as its neighbours may be to theirs; 255 for what is no
// number.
NIBBLE_HOST_DEVICE uint32_t e2m1_e8m0_scale(uint32_t bits) {
  if (bits >= 0x7f800000u) return 255;
  const int exponent = static_cast<int>(bits >> 23) - 2 + ((bits & 0x7fffffu) > 0x600000u);
  return exponent > 0 ? static_cast<uint32_t>(exponent) : 0;
}
// 1 over 2^(scale - 127), which a float32 has of every scale but 254 and 255.
NIBBLE_HOST_DEVICE uint32_t inverse_e8m0_bits(uint32_t scale) { return (254 - scale) << 23; }

// Of a row under NVFP4: the float32, and what the largest of a block is multiplied by to be its
// E4M3.
struct E2m1RowScale {
  float scale, of_block;
};
NIBBLE_HOST_DEVICE E2m1RowScale e2m1_row_scale(float largest) {
  return {largest / (6 * kE4m3Largest), largest > 0 ? kE4m3Largest / largest : 0};
}

namespace internal {
// As unsigned numbers magnitudes are in order, infinity and NaN behind them.
inline uint32_t largest_bits(const float* x, int64_t n) {
  uint32_t most = 0;
  for (int64_t i = 0; i < n; ++i)
    most = std::max(most, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  return most;
}
inline void round_block(float* x, int64_t n, float scale, float inverse) {
  for (int64_t i = 0; i < n; ++i) x[i] = scale * kE2m1[e2m1_from_float(x[i] * inverse)];
}
}  // namespace internal

// Rounds a row of n values as kernels do before they multiply it with weights of this format.
inline void round_to_e2m1(float* x, int64_t n, Format weights) {
  if (weights == Format::kMxfp4) {
    for (int64_t b = 0; b < n; b += kMxfp4BlockElems) {
      const uint32_t s = e2m1_e8m0_scale(internal::largest_bits(x + b, kMxfp4BlockElems));
      internal::round_block(x + b, kMxfp4BlockElems, e8m0_to_float(static_cast<uint8_t>(s)),
                            std::bit_cast<float>(inverse_e8m0_bits(s)));
    }
    return;
  }
  const auto row = e2m1_row_scale(std::bit_cast<float>(internal::largest_bits(x, n)));
  for (int64_t b = 0; b < n; b += kNvfp4BlockElems) {
    const float largest = std::bit_cast<float>(internal::largest_bits(x + b, kNvfp4BlockElems));
    const float scale = kE4m3[e4m3_from_float(largest * row.of_block)] * row.scale;
    internal::round_block(x + b, kNvfp4BlockElems, scale, scale > 0 ? 1 / scale : 0);
  }
}

}  // namespace nibble::ops

#undef NIBBLE_HOST_DEVICE
