// Which of the blocks that work on one thing comes last, to put their parts together.
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

}  // namespace nibble::cuda
