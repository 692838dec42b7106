#include "cuda/caps.h"

namespace nibble::cuda {

Caps h200() {
  return {.sm = 90,
          .num_sms = 132,
          .smem_per_block_bytes = 227 * 1024,
          .l2_bytes = int64_t{60} << 20,
          .memory_bytes = int64_t{150'110'011'392},
          .name = "NVIDIA H200"};
}

Caps gb10() {
  return {.sm = 121,
          .num_sms = 48,
          .smem_per_block_bytes = 99 * 1024,
          .l2_bytes = int64_t{24} << 20,
          .memory_bytes = int64_t{128} << 30,
          .name = "NVIDIA GB10"};
}

}  // namespace nibble::cuda
