// The order in which activations lie for SM12x's block-scaled mma: a lane's part of operand B of
// 64 k is 16 bytes of E4M3 or 8 of E2M1, whose k are those that the lane's codes of A have as a
// unit of kTiles16x64 gives them (operands_sm12x.cuh).
#pragma once

#include "cuda/mma_sm12x_model.h"
#include "formats/format.h"

namespace nibble::ops::gpu::sm12x {

// The column, of 64, whose code is byte `place` = 16 p + 8 b + 4 h + j of them, for weights of this
// format: p the lane of four, b the half of 32 k, h the word of B.
NIBBLE_BOTH_SIDES int column_of_place(Format weights, int place) {
  const int p = place / 16, b = place / 8 % 2, h = place / 4 % 2, j = place % 4;
  const int first = 32 * b + 2 * p;
  if (weights == Format::kMxfp4) return first + 16 * (j % 2) + 8 * h + j / 2;
  if (weights == Format::kNvfp4) return first + 8 * j + h;
  return first + 16 * h + 8 * (1 - j % 2) + j / 2;  // of 8 bits
}

// The same of E2M1: of nibble n of word b of lane p.
NIBBLE_BOTH_SIDES int column_of_nibble(Format weights, int p, int b, int n) {
  if (weights == Format::kMxfp4) return 32 * b + 8 * (n % 4) + 2 * p + n / 4;
  // A block of 16 in lanes 2 s and 2 s + 1: a lane's own of it, then those of lane p ^ 2.
  const int from = n / 4 == 0 ? p : p ^ 2;
  return 32 * b + 16 * (p / 2) + 8 * (n % 2) + 2 * from + n / 2 % 2;
}

// Codes of MXFP4 in bits 5..2 of bytes, of a word of a unit, those of B's word h.
NIBBLE_BOTH_SIDES uint32_t codes_of_word(uint32_t word, int h) {
  return (h == 0 ? word << 2 : word >> 2) & 0x3c3c3c3cu;
}

}  // namespace nibble::ops::gpu::sm12x
