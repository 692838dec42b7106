// FP8 weights under scales of blocks: 128 x 128 in checkpoints; here every row has the scales of
// its blocks, 3% more bytes, so that rows can be cut and joined anywhere.
//
//   a row of K elements:
//     codes   K bytes                 E4M3 (see fp8.h), none of them NaN
//     scales  4 ceil(K / 128) bytes   float32, multipliers; the last may cover fewer elements
//   value = E4M3(code) * scale, rounded to float32
//
// On disk: NAME.weight [N, K] E4M3, and F32 or BF16 [ceil(N / 128), ceil(K / 128)]:
// NAME.weight_scale_inv (DeepSeek, Qwen: a multiplier in spite of its name) or NAME.weight_scale.
#pragma once

#include <cstdint>
#include <cstring>

#include "formats/fp8.h"

namespace nibble {

inline constexpr int kFp8BlockElems = 128;

// The twin, of one row.
inline void fp8_block_decode(const uint8_t* codes, const uint8_t* scales, int64_t cols,
                             float* out) {
  for (int64_t k = 0; k < cols; ++k) {
    float scale;
    std::memcpy(&scale, scales + k / kFp8BlockElems * 4, sizeof(scale));
    out[k] = kE4m3[codes[k]] * scale;
  }
}

}  // namespace nibble
