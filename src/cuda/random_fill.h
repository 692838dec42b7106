// Dummy weights made where they lie.
#pragma once

#include <cstdint>

#include "tensor/random_bytes.h"

namespace nibble::cuda {

// Fills device memory; `data` is 16-byte aligned. Waits until it is done.
void random_fill(void* data, int64_t bytes, const RandomBytes& what);

}  // namespace nibble::cuda
