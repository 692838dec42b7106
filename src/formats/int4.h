// INT4 weights: whole numbers of 4 bits, each group of 32 or 128 under a scale and a zero point.
//
//   a row of K elements, K a multiple of the group G:
//     codes   K/2 bytes    byte b:  bits 3..0 = element 2b,  bits 7..4 = element 2b + 1; 0 to 15
//     groups  4 K/G bytes  bytes 0..1 scale, float16 or bfloat16 | byte 2 zero point, 0 to 15 |
//                          byte 3: 1 where the scale is float16
//   value = (code - zero) * scale, exact in float32
//
// On disk: compressed-tensors' pack-quantized NAME.weight_packed I32 [N, K/8] (element i at bits
// 4 (i % 8) of word i / 8), NAME.weight_scale [N, K/G], NAME.weight_zero_point I32 [N/8, K/G] (row
// n at bits 4 (n % 8)), or none: 8; and AWQ's ("gemm") NAME.qweight I32 [K, N/8], NAME.qzeros I32
// [K/G, N/8], NAME.scales [K/G, N], column 8j + c at nibble 0, 4, 1, 5, 2, 6, 3, 7 of c. Groups of
// another size are several here.
#pragma once

#include <cstdint>
#include <cstring>

#include "formats/bf16.h"
#include "formats/f16.h"

namespace nibble {

struct Int4Group {
  uint16_t scale;
  uint8_t zero;
  uint8_t is_f16;

  float value() const { return is_f16 != 0 ? f16_to_float(scale) : bf16_to_float(scale); }
};
static_assert(sizeof(Int4Group) == 4);

inline Int4Group int4_group(const uint8_t* groups, int64_t index) {
  Int4Group group;
  std::memcpy(&group, groups + index * sizeof(group), sizeof(group));
  return group;
}

// The twin, of one row.
inline void int4_decode(const uint8_t* codes, const uint8_t* groups, int64_t cols, int group_elems,
                        float* out) {
  for (int64_t k = 0; k < cols; ++k) {
    const Int4Group group = int4_group(groups, k / group_elems);
    const int code = codes[k / 2] >> (k % 2 * 4) & 15;
    out[k] = static_cast<float>(code - group.zero) * group.value();
  }
}

}  // namespace nibble
