// Weight: one matrix, or one per expert, as a kernel reads it. A view: the loader owns the bytes.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "formats/layout.h"
#include "tensor/tensor.h"

namespace nibble {

// y[n] = sum_k w[n][k] x[k] + bias[n]. Bytes lie as the layout says; experts follow one another.
struct Weight {
  Format format = Format::kBF16;
  Layout layout = Layout::kRows;
  int64_t experts = 1;
  int64_t rows = 0;  // N
  int64_t cols = 0;  // K
  const uint8_t* codes = nullptr;
  // Of blocks, as the format says, in kRows [experts, N, blocks of K]; none: see the layout.
  const uint8_t* scales = nullptr;
  const float* row_scales = nullptr;  // [experts, N] of formats that have them: multiplied in
  const uint16_t* bias = nullptr;     // [experts, N] bf16, or none

  // Of one row; in packed layouts a sixteenth of a group.
  int64_t row_code_bytes() const { return nibble::row_code_bytes(format, layout, cols); }
  int64_t row_scale_bytes() const { return nibble::row_scale_bytes(format, layout, cols); }
  // Expert e as a weight of its own.
  Weight expert(int64_t e) const {
    CHECK(e >= 0 && e < experts);
    Weight w = *this;
    w.experts = 1;
    w.codes += e * rows * row_code_bytes();
    if (scales != nullptr) w.scales += e * rows * row_scale_bytes();
    if (row_scales != nullptr) w.row_scales += e * rows;
    if (bias != nullptr) w.bias += e * rows;
    return w;
  }
  // `n` rows from `row0` on, of a weight without experts; in packed layouts whole groups.
  Weight slice(int64_t row0, int64_t n) const {
    CHECK(layout == Layout::kRows || (row0 % kGroupRows == 0 && n % kGroupRows == 0));
    Weight w = *this;
    w.rows = n;
    w.codes += row0 * row_code_bytes();
    if (scales != nullptr) w.scales += row0 * row_scale_bytes();
    if (row_scales != nullptr) w.row_scales += row0;
    if (bias != nullptr) w.bias += row0;
    return w;
  }
};

// What the values of a matrix in MXFP4 let kernels do, by which rows of tables refuse it. Known
// once it is loaded; until then it is taken for one of the many that let them do all.
struct WeightFacts {
  bool fits_e5m2 = true;  // no block's scale is above 2; see gpu_matmul/row_exponents.h
  bool fits_e4m3 = true;  // by one factor a row, and for experts those it works with, too
  bool operator==(const WeightFacts&) const = default;
};

// RMS norm: y = x / sqrt(mean(x^2) + eps) * (offset + weight).
struct Norm {
  const uint16_t* weight = nullptr;  // bf16, as many as x has
  float eps = 0;
  float offset = 0;  // 1 where weights are stored around zero
};

}  // namespace nibble
