// FP8 weights under one float32 a row. Checkpoints have it for each output channel, or one for the
// whole matrix, which is every row's here.
//
//   a row of K elements:
//     codes  K bytes   E4M3 (see fp8.h), none of them NaN
//     scale  4 bytes   float32, a multiplier
//   value = E4M3(code) * scale, rounded to float32
//
// On disk: NAME.weight [N, K] E4M3, NAME.weight_scale [] or [1] or [N] or [N, 1] F32 or BF16.
#pragma once

#include <cstdint>

#include "formats/fp8.h"

namespace nibble {

// The twin.
inline void fp8_row_decode(const uint8_t* codes, int64_t cols, float row_scale, float* out) {
  for (int64_t k = 0; k < cols; ++k) out[k] = kE4m3[codes[k]] * row_scale;
}

}  // namespace nibble
