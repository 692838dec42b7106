// Copies between global and shared memory by the copy engine. For sm_90 and sm_121 alike:
// destinations are named .shared::cta, which sm_121 does without a detour. Source: PTX ISA 9.0,
// section 9.7.9.25.
#pragma once

#include <cstdint>

#include "cuda/mbarrier.cuh"

namespace nibble::cuda {

// Copies `bytes` (a multiple of 16; both ends aligned to 16) and completes a phase of `barrier`,
// which was made for one arrival: this one.
__device__ __forceinline__ void bulk_copy(uint32_t to, const void* from, uint32_t bytes,
                                          uint32_t barrier) {
  barrier_expect(barrier, bytes);
  asm volatile(
      "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// For weights that a step reads once: they leave the L2 cache first, so that code, activations and
// keys stay there beside gigabytes of them. A hint for copies; source: PTX ISA 9.0, 9.7.9.17.
__device__ __forceinline__ uint64_t evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void bulk_copy(uint32_t to, const void* from, uint32_t bytes,
                                          uint32_t barrier, uint64_t policy) {
  barrier_expect(barrier, bytes);
  asm volatile(
      "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], "
      "%2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// The other way, in groups that end in their order, for the thread that asked. What threads wrote
// to shared memory it sees behind a fence of each (bulk_store_fence) and a barrier.
__device__ __forceinline__ void bulk_store(void* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_store_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void bulk_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until all but the last kPending groups have been read from shared memory: all are, before their
// thread ends.
template <int kPending>
__device__ __forceinline__ void bulk_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

}  // namespace nibble::cuda
