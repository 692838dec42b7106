// Memory that a GPU reads, as Buffers; copies. Functions without a stream wait until they are done.
// Errors of the device throw std::runtime_error: start-up and a step both end then.
#pragma once

#include <cstdint>

#include "cuda/caps.h"
#include "tensor/buffer.h"

namespace nibble::cuda {

// Not zeroed. Throws Error(kMemory) where the device has not that much left.
Buffer device_buffer(int64_t bytes);
// Page-locked host memory: copies from and to it run beside kernels.
Buffer pinned_buffer(int64_t bytes);

// Between host and device, either way.
void copy_async(void* to, const void* from, int64_t bytes, StreamHandle stream);
void zero_async(void* data, int64_t bytes, StreamHandle stream);
// Waits for all work of `stream` so far.
void wait(StreamHandle stream);
void copy(void* to, const void* from, int64_t bytes);
void fill(void* data, uint8_t byte, int64_t bytes);

}  // namespace nibble::cuda
