#include "ops/matmul_ref.h"

#include <cmath>
#include <cstring>

#include "formats/bf16.h"
#include "formats/f16.h"
#include "formats/fp8_block.h"
#include "formats/fp8_row.h"
#include "formats/int4.h"
#include "formats/mxfp4.h"
#include "formats/mxfp8.h"
#include "formats/nvfp4.h"

namespace nibble::ops::ref {
namespace {

// One row as its format lays it out.
void decode(Format format, int64_t cols, const uint8_t* codes, const uint8_t* scales,
            float row_scale, float* out) {
  if (format == Format::kNvfp4) {
    for (int64_t b = 0; b < cols / kNvfp4BlockElems; ++b) {
      Nvfp4Codes block;
      std::memcpy(&block, codes + b * sizeof(block), sizeof(block));
      nvfp4_decode(block, scales[b], row_scale, out + b * kNvfp4BlockElems);
    }
    return;
  }
  if (format == Format::kFp8Row) return fp8_row_decode(codes, cols, row_scale, out);
  if (format == Format::kInt4G32 || format == Format::kInt4G128)
    return int4_decode(codes, scales, cols, format_row(format).block_elems, out);
  if (format == Format::kFp8Block) return fp8_block_decode(codes, scales, cols, out);
  if (format == Format::kMxfp4) {
    for (int64_t b = 0; b < cols / kMxfp4BlockElems; ++b) {
      Mxfp4Codes block;
      std::memcpy(&block, codes + b * sizeof(block), sizeof(block));
      mxfp4_decode(block, scales[b], out + b * kMxfp4BlockElems);
    }
    return;
  }
  if (format == Format::kMxfp8) {
    for (int64_t b = 0; b < cols / kMxfp8BlockElems; ++b) {
      Mxfp8Codes block;
      std::memcpy(&block, codes + b * sizeof(block), sizeof(block));
      mxfp8_decode(block, scales[b], out + b * kMxfp8BlockElems);
    }
    return;
  }
  if (format == Format::kF32) {
    std::memcpy(out, codes, 4 * cols);
    return;
  }
  CHECK(format == Format::kBF16 || format == Format::kF16);
  for (int64_t k = 0; k < cols; ++k) {
    uint16_t bits;
    std::memcpy(&bits, codes + 2 * k, 2);
    out[k] = format == Format::kBF16 ? bf16_to_float(bits) : f16_to_float(bits);
  }
}

}  // namespace

void decode_row(const Weight& w, int64_t e, int64_t row, float* out) {
  const Weight expert = w.expert(e);
  const float row_scale = expert.row_scales == nullptr ? 1 : expert.row_scales[row];
  if (w.layout == Layout::kRows) {
    decode(w.format, w.cols, expert.codes + row * w.row_code_bytes(),
           expert.scales + row * w.row_scale_bytes(), row_scale, out);
    return;
  }
  std::vector<uint8_t> codes(row_code_bytes(w.format, Layout::kRows, w.cols));
  std::vector<uint8_t> scales(row_scale_bytes(w.format, Layout::kRows, w.cols));
  unpack_row(w.format, w.layout, row, w.cols, {expert.codes, expert.scales},
             {codes.data(), scales.data()});
  decode(w.format, w.cols, codes.data(), scales.data(), row_scale, out);
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
