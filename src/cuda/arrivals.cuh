// Blocks that work on one thing: which of them comes last, to put their parts together, and a
// barrier of all.
#pragma once

#include <cstdint>

namespace nibble::cuda {

// By one thread of each of `blocks` blocks, behind a barrier of its block: whether it is the last;
// what all of them wrote before is then there for its block, behind the next barrier. The counter
// is zero before and after. (__threadfence() on both sides would also order what no one asks for.)
__device__ __forceinline__ bool is_last_arrival(uint32_t* counter, uint32_t blocks) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(blocks - 1)
               : "memory");
  return before == blocks - 1;  // it wrapped to 0
}

// By one thread of each of `blocks` blocks, all of the kernel's, behind a barrier of its block:
// waits for all; what they wrote before is then there for its block, behind the next barrier. The
// counter is zero before and after: it counts who comes, then who goes.
//
// The kernel has at most as many blocks as the GPU holds of it. Then all of them start: others end
// without it, and one behind it starts early only when every block has called
// griddep_launch_dependents(), so runs. Other processes have the GPU by turns, each with all its
// blocks. But two kernels that meet, at the same time on two streams or under MPS, may each hold a
// part of the GPU and wait for ever: a process has one stream for them, and MPS one such process.
__device__ __forceinline__ void meet(uint32_t* counter, uint32_t blocks) {
  uint32_t come;
  asm volatile("red.release.gpu.global.inc.u32 [%0], %1;" ::"l"(counter), "r"(2 * blocks - 1)
               : "memory");
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(come) : "l"(counter) : "memory");
  } while (come < blocks);
  asm volatile("red.relaxed.gpu.global.inc.u32 [%0], %1;" ::"l"(counter), "r"(2 * blocks - 1)
               : "memory");
}

}  // namespace nibble::cuda
