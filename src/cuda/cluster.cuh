// Blocks of a cluster: their barrier. Source: PTX ISA 9.0, section 9.7.13.4.
#pragma once

namespace nibble::cuda {

// Every thread of every block arrives, its writes before with it; whole warps.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

}  // namespace nibble::cuda
