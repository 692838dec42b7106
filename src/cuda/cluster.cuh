// Blocks of a cluster: their barrier, and shared memory of each other. Source: PTX ISA 9.0,
// sections 9.7.9.12, 9.7.9.22 and 9.7.13.4.
#pragma once

#include <cstdint>

namespace nibble::cuda {

// Every thread of every block arrives; whole warps. The others see none of its writes for it, but
// barriers' barrier_init(): for a release the compiler waits for every store on its way to the
// GPU's memory.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// What lies at `address` of this block's shared memory, in block `rank` of the cluster.
__device__ __forceinline__ uint32_t remote_address(uint32_t address, int rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
// From this block's shared memory to another's by the copy engine: both addresses, and bytes, are
// multiples of 16. Counts as so many bytes landed at `barrier`, of the block that `to` lies in.
__device__ __forceinline__ void copy_to_remote(uint32_t to, uint32_t from, uint32_t bytes,
                                               uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "r"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// Counts as 4 bytes landed at `barrier`, of the same block.
__device__ __forceinline__ void store_remote(uint32_t address, float v, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(address),
      "r"(__float_as_uint(v)), "r"(barrier)
      : "memory");
}

}  // namespace nibble::cuda
