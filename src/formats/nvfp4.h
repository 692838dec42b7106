// NVFP4: blocks of 16 E2M1 values that share one E4M3 scale, under one float32 a row.
// Source: NVIDIA's Model Optimizer and compressed-tensors, whose checkpoints have one float32 a
// matrix: fused matrices keep that of each part, so that it is a row's here.
//
//   a block is 16 consecutive elements of a row (the K dimension, last):
//     codes   8 bytes  byte b:  bits 3..0 = element 2b,  bits 7..4 = element 2b + 1 (see mxfp4.h)
//     scale   1 byte   E4M3 (see fp8.h), 0x00 to 0x7e: neither negative nor NaN
//   a row:    4 bytes  float32 g, positive
//
//   value = E2M1(code) * (E4M3(scale) * g), each product rounded to float32
//
// On disk: NAME.weight [N, K/2] u8, NAME.weight_scale [N, K/16] E4M3, NAME.weight_scale_2 = g
// (ModelOpt); NAME.weight_packed, NAME.weight_scale, NAME.weight_global_scale = 1 / g
// (compressed-tensors).
#pragma once

#include <cstdint>

namespace nibble {

inline constexpr int kNvfp4BlockElems = 16;
inline constexpr uint8_t kLargestNvfp4Scale = 0x7e;

struct Nvfp4Codes {
  uint8_t bytes[kNvfp4BlockElems / 2];
};
static_assert(sizeof(Nvfp4Codes) == 8);

// The twin.
void nvfp4_decode(const Nvfp4Codes& codes, uint8_t scale, float row_scale, float* out);

// g of a row of which `largest` is the greatest magnitude: largest / (6 * 448), or 1 for zeros.
float nvfp4_row_scale(float largest);

struct Nvfp4Block {
  Nvfp4Codes codes;
  uint8_t scale;
};

// 16 finite values under g = nvfp4_row_scale(): of the scales that map the greatest magnitude to
// between 3 and 16 (clipping it above 6 can leave the others closer), the one of least squared
// error, each value rounded to the nearest code (ties to the even code). Ties between scales go to
// the smaller one; zeros have scale 0.
Nvfp4Block nvfp4_encode(const float* values, float row_scale);

}  // namespace nibble
