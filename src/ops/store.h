// Rounding of stored activations (h, q, att, u; the residual stream x and its delta d are float32).
// On the CPU they lie in float32 buffers whatever their format; kBF16 rounds each value to the
// nearest bfloat16 when it is stored.
#pragma once

#include "formats/bf16.h"
#include "tensor/dtype.h"

namespace nibble::ops {

inline float stored(DType activations, double value) {
  const float f = static_cast<float>(value);
  return activations == DType::kBF16 ? bf16_to_float(bf16_from_float(f)) : f;
}

}  // namespace nibble::ops
