// Changes of single entries of a table on the GPU.
#pragma once

#include <cstdint>

#include "cuda/caps.h"

namespace nibble::cuda {

struct Update {
  int32_t index;
  int32_t value;
};

// table[u.index] = u.value for each of n updates, which lie on the device; indices differ.
void scatter(int32_t* table, const Update* updates, int64_t n, StreamHandle stream);

}  // namespace nibble::cuda
