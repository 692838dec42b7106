// Blocks of a cluster: their barrier, and shared memory of each other. Source: PTX ISA 9.0,
// sections 9.7.9.12, 9.7.9.22 and 9.7.13.4.
#pragma once

#include <cstdint>

namespace nibble::cuda {

// Every thread of every block arrives, its writes before with it; whole warps.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// The same where the others need to see none of these writes, but barriers' barrier_init(): without
// the release, for which the compiler waits for every store on its way to the GPU's memory.
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
__device__ __forceinline__ float2 load_remote(uint32_t address) {
  float2 v;
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
               : "=f"(v.x), "=f"(v.y)
               : "r"(address)
               : "memory");
  return v;
}
// Counts as 4 bytes landed at `barrier`, of the same block.
__device__ __forceinline__ void store_remote(uint32_t address, float v, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(address),
      "r"(__float_as_uint(v)), "r"(barrier)
      : "memory");
}

}  // namespace nibble::cuda
