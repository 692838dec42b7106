// Barriers in shared memory (mbarriers), by their shared address: for sm_90 and sm_121 alike.
// Source: PTX ISA 9.0, section 9.7.13.15.
#pragma once

#include <cstdint>

namespace nibble::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// After barrier_init(), before the copy engine may see the barriers.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives; the phase ends when so many bytes have landed, too.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Arrives when this thread's earlier cp.async have landed; counts as one of the arrivals.
__device__ __forceinline__ void barrier_arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred landed;\n"
      "AGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 landed, [%0], %1;\n"
      "@!landed bra AGAIN;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// The same by a whole warp, which leaves it together.
__device__ __forceinline__ void barrier_wait_together(uint32_t barrier, uint32_t parity) {
  uint32_t landed;
  do {
    asm volatile(
        "{\n"
        ".reg .pred landed;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 landed, [%1], %2;\n"
        "selp.u32 %0, 1, 0, landed;\n"
        "}"
        : "=r"(landed)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (!__all_sync(~0u, landed != 0));
}

}  // namespace nibble::cuda
