// How fast the GPU's memory is read: the yardstick of kernels and of tokens per second.
#pragma once

#include <cstdint>

#include "cuda/caps.h"

namespace nibble::cuda {

// Bytes a second of a kernel that only reads `bytes` of memory, which it allocates and frees; the
// median of `repeats`. Throws Error(kMemory).
double measure_read_bandwidth(const Caps& caps, int64_t bytes, int repeats);

}  // namespace nibble::cuda
