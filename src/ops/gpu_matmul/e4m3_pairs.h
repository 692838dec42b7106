// Rows of activations as gemm_narrow (gemm_narrow_sm90.cuh) multiplies them: bf16 by two E4M3.
#pragma once

#include <cstdint>

#include "formats/format.h"
#include "ops/scratch.h"

namespace nibble::ops::gpu {

// A row: a power-of-two factor puts its largest element into [128, 256); an element is then the sum
// high + low / 16, off by 2^-22 of the row's largest at most: a bf16 keeps every bit down to 2^-13
// of it. Codes [rows, K / 16, columns, 16]: high, then low, of 16 columns in E4M3 order
// (gemm_fp8_sm90.cuh). factors [rows]: what products are to be multiplied by; NaN where an element
// is not finite.
struct E4m3Pairs {
  uint8_t* codes;
  float* factors;
};
inline E4m3Pairs take_e4m3_pairs(Scratch& scratch, int64_t rows, int64_t cols) {
  auto* const codes = scratch.take<uint8_t>(2 * rows * cols);
  return {codes, scratch.take<float>(rows)};
}

}  // namespace nibble::ops::gpu
