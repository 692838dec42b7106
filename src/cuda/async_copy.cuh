// Copies by single threads from global to shared memory, of 16 bytes past L1, in groups that end in
// their order. Source: PTX ISA 9.0, section 9.7.9.25.3.
#pragma once

#include <cstdint>

namespace nibble::cuda {

// Both ends aligned to 16.
__device__ __forceinline__ void async_copy_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
               : "memory");
}
// If `is_any`, without a branch.
__device__ __forceinline__ void async_copy_16_if(bool is_any, uint32_t to, const void* from) {
  asm volatile(
      "{\n"
      ".reg .pred any;\n"
      "setp.ne.u32 any, %0, 0;\n"
      "@any cp.async.cg.shared.global [%1], [%2], 16;\n"
      "}" ::"r"(uint32_t{is_any}),
      "r"(to), "l"(from)
      : "memory");
}
// `policy`: of the L2 cache, see evict_first() in bulk_copy.cuh.
__device__ __forceinline__ void async_copy_16(uint32_t to, const void* from, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(to),
               "l"(from), "l"(policy)
               : "memory");
}
// Of 4 bytes, the least there is, through L1.
__device__ __forceinline__ void async_copy_4(float* to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
}
// The copies of this thread since the last call are a group; it may be empty.
__device__ __forceinline__ void async_copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until all but the last kPending groups of this thread have landed, for itself to read.
template <int kPending>
__device__ __forceinline__ void async_copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace nibble::cuda
