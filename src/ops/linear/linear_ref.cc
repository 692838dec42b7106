#include "ops/linear/linear_ref.h"

#include <cmath>
#include <cstring>

#include "formats/bf16.h"
#include "formats/mxfp4.h"

namespace nibble::ops::ref {

void decode_row(const Weight& w, int64_t e, int64_t row, float* out) {
  const uint8_t* codes = w.codes + (e * w.rows + row) * w.row_code_bytes();
  if (w.format == Format::kMxfp4) {
    const uint8_t* scales = w.scales + (e * w.rows + row) * w.row_scale_bytes();
    for (int64_t b = 0; b < w.cols / kMxfp4BlockElems; ++b) {
      Mxfp4Codes block;
      std::memcpy(&block, codes + b * sizeof(block), sizeof(block));
      mxfp4_decode(block, scales[b], out + b * kMxfp4BlockElems);
    }
    return;
  }
  CHECK(w.format == Format::kBF16);
  for (int64_t k = 0; k < w.cols; ++k) {
    uint16_t bits;
    std::memcpy(&bits, codes + 2 * k, 2);
    out[k] = bf16_to_float(bits);
  }
}

double bias_of(const Weight& w, int64_t e, int64_t row) {
  return w.bias == nullptr ? 0.0 : bf16_to_float(w.bias[e * w.rows + row]);
}

Row::Row(const Weight& w, int64_t e, int64_t row) : w_(w.cols), bias_(bias_of(w, e, row)) {
  decode_row(w, e, row, w_.data());
}

double Row::dot(const float* x, double* abs) const {
  double sum = bias_, magnitude = std::fabs(bias_);
  for (size_t k = 0; k < w_.size(); ++k) {
    const double term = static_cast<double>(w_[k]) * x[k];
    sum += term;
    magnitude += std::fabs(term);
  }
  if (abs != nullptr) *abs = magnitude;
  return sum;
}

}  // namespace nibble::ops::ref
