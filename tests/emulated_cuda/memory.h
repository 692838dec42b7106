// Memory of the emulated device: the host's, in ranges that are known, so that an access beside
// them is a fault of the kernel and not of the process.
#pragma once

#include <cstddef>
#include <cstdint>

#include "machine.h"

namespace nibble::emulated {

// Throw nothing; nullptr where the device has no more. Between ranges lie pages that fault.
void* allocate(size_t bytes);
// False: not one of ours.
bool release(void* memory);
void add_range(const void* begin, size_t bytes);
void remove_range(const void* begin);
size_t allocated_bytes();
bool is_ours(const void* memory);
// Zeroes large ranges without touching their pages.
void set_memory(void* memory, int value, size_t bytes);

// The range that `address` lies in; begin > end where there is none.
Range find_range(uint64_t address);
uint64_t range_generation();  // grows when a range goes

// Where `bytes` at a generic or global address lie, checked for lane `lane`.
std::byte* global_at(const Inst& in, uint64_t address, uint32_t bytes, int lane);
// The same of shared memory of the block or, by the bits above 24, of its cluster.
std::byte* shared_at(const Warp& w, uint64_t address, uint32_t bytes, int lane);
Block& block_of_shared(const Warp& w, uint64_t address);
inline std::byte* generic_at(const Warp& w, const Inst& in, uint64_t address, uint32_t bytes,
                             int lane) {
  return (address & kSharedWindow) != 0 ? shared_at(w, address & 0xffffffffu, bytes, lane)
                                        : global_at(in, address, bytes, lane);
}

}  // namespace nibble::emulated
