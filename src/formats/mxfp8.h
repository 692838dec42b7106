// MXFP8 (OCP Microscaling 1.0): blocks of 32 E4M3 values that share one E8M0 scale.
// Source: OCP MX specification sections 5.1 and 5.3.1.
//
//   a block is 32 consecutive elements of a row (the K dimension, last):
//     codes  32 bytes  byte b: element b, E4M3 (see fp8.h)
//     scale   1 byte   s: 2^(s - 127), as in MXFP4
#pragma once

#include <cstdint>

namespace nibble {

inline constexpr int kMxfp8BlockElems = 32;

struct Mxfp8Codes {
  uint8_t bytes[kMxfp8BlockElems];
};
static_assert(sizeof(Mxfp8Codes) == 32);

// The twin: out[0..31] = E4M3(code) * 2^(scale - 127). Exact in float32 but for what lies above its
// largest value (infinite) or below its least subnormal (rounded).
void mxfp8_decode(const Mxfp8Codes& codes, uint8_t scale, float* out);

struct Mxfp8Block {
  Mxfp8Codes codes;
  uint8_t scale;
};

// The block of 32 finite values of least squared error: tries each scale that can win, rounds each
// value to the nearest code (ties to the even code, 448 at most). Ties between scales go to the
// larger one, which leaves the codes room. An all-zero block has scale 0.
Mxfp8Block mxfp8_encode(const float* values);

}  // namespace nibble
