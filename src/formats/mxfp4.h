// MXFP4 (OCP Microscaling 1.0): blocks of 32 E2M1 values that share one E8M0 scale.
// Source: OCP MX specification sections 5.2 and 5.3.3; layout as in gpt-oss checkpoints.
//
//   a block is 32 consecutive elements of a row (the K dimension, last):
//     codes  16 bytes  byte b:  bits 3..0 = element 2b,  bits 7..4 = element 2b + 1
//     scale   1 byte   s: 2^(s - 127); s = 0 is the float32 subnormal 2^-127; s = 255 is NaN
//   a code:  bit 3 sign | bits 2..0 index into {0, 0.5, 1, 1.5, 2, 3, 4, 6}
//
// On disk codes and scales are two tensors: *_blocks [..., K/32, 16] u8 and *_scales [..., K/32]
// u8.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace nibble {

inline constexpr int kMxfp4BlockElems = 32;

struct Mxfp4Codes {
  uint8_t bytes[kMxfp4BlockElems / 2];
};
static_assert(sizeof(Mxfp4Codes) == 16);

// Value of each 4-bit code. 0x8 is -0.
inline constexpr float kE2m1[16] = {0.f,  .5f,  1.f,  1.5f,  2.f,  3.f,  4.f,  6.f,
                                    -0.f, -.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f};

// Nearest code, ties to the even one; what is larger than 6 becomes 6; a NaN becomes 0.
constexpr uint8_t e2m1_from_float(float x) {
  constexpr float kHalfway[] = {.25f, .75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.f};
  const float magnitude = x < 0 ? -x : x;
  uint8_t code = std::bit_cast<uint32_t>(x) >> 31 != 0 ? 8 : 0;
  for (int i = 0; i < 7; ++i)
    code += i % 2 == 0 ? magnitude > kHalfway[i] : magnitude >= kHalfway[i];
  return code;
}

// 2^33: the largest scale that every kernel takes; models' are below 1. More is damage, as 255 is.
inline constexpr uint8_t kLargestE8m0 = 160;

constexpr float e8m0_to_float(uint8_t scale) {
  if (scale == 0) return std::bit_cast<float>(0x00400000u);  // 2^-127
  if (scale == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(static_cast<uint32_t>(scale) << 23);
}

// The twin: out[0..31] = table[code] * 2^(scale - 127), exact in float32.
// Exception: |value| above float32's largest (scale > 252 and a large code) becomes infinite.
void mxfp4_decode(const Mxfp4Codes& codes, uint8_t scale, float* out);

struct Mxfp4Block {
  Mxfp4Codes codes;
  uint8_t scale;
};

// The block of 32 finite values of least squared error: tries each scale that can win, rounds each
// value to the nearest code (ties to the even code). Ties between scales go to the smaller one.
// An all-zero block has scale 0.
Mxfp4Block mxfp4_encode(const float* values);

}  // namespace nibble
