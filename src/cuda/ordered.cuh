// float32 as integers of the same order, for maxima of a warp in one instruction.
#pragma once

#include <cstdint>

namespace nibble::cuda {

// 0 is below every number.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits ^ (bits >> 31 ? 0xffffffff : 0x80000000);
}
__device__ __forceinline__ float of_ordered(uint32_t order) {
  return __uint_as_float(order ^ (order >> 31 ? 0x80000000 : 0xffffffff));
}

}  // namespace nibble::cuda
