// A kernel's parameters, before it waits for the kernel in front.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nibble::cuda {

// Brings them into the constant cache: every launch's lie elsewhere, and a first use behind
// griddep_wait() would fetch them from L2.
template <class... Params>
__device__ __forceinline__ void touch_parameters(const Params&... params) {
  constexpr size_t kLine = 64;
  const auto touch = [](const auto& p) {
#pragma unroll
    for (size_t i = 0; i < sizeof(p); i += kLine)
      asm volatile("" ::"r"(reinterpret_cast<const uint32_t*>(&p)[i / 4]));
  };
  (touch(params), ...);
}

}  // namespace nibble::cuda
