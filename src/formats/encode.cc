#include "formats/encode.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "formats/bf16.h"
#include "formats/mxfp4.h"
#include "formats/mxfp8.h"
#include "formats/nvfp4.h"

namespace nibble {
namespace {

constexpr int kMostBlockElems = 32;

// Encodes one block to `codes` and `scale`; `decoded` gets what they stand for.
void encode_block(Format to, const float* values, float row_scale, uint8_t* codes, uint8_t* scale,
                  float* decoded) {
  if (to == Format::kNvfp4) {
    const Nvfp4Block block = nvfp4_encode(values, row_scale);
    std::memcpy(codes, &block.codes, sizeof(block.codes));
    *scale = block.scale;
    nvfp4_decode(block.codes, block.scale, row_scale, decoded);
  } else if (to == Format::kMxfp4) {
    const Mxfp4Block block = mxfp4_encode(values);
    std::memcpy(codes, &block.codes, sizeof(block.codes));
    *scale = block.scale;
    mxfp4_decode(block.codes, block.scale, decoded);
  } else {
    const Mxfp8Block block = mxfp8_encode(values);
    std::memcpy(codes, &block.codes, sizeof(block.codes));
    *scale = block.scale;
    mxfp8_decode(block.codes, block.scale, decoded);
  }
}

void count(const float* values, const float* decoded, int block, EncodeLoss& loss) {
  double error = 0, sum = 0;
  int nonzero = 0, kept = 0;
  for (int i = 0; i < block; ++i) {
    const double value = values[i], off = value - decoded[i];
    error += off * off;
    sum += value * value;
    nonzero += values[i] != 0;
    kept += decoded[i] != 0;
  }
  loss += {error, sum, 1, 2 * kept < nonzero ? 1 : 0};
}

}  // namespace

double EncodeLoss::relative_rms() const {
  return squared_sum == 0 ? 0 : std::sqrt(squared_error / squared_sum);
}

EncodeLoss& EncodeLoss::operator+=(const EncodeLoss& other) {
  squared_error += other.squared_error;
  squared_sum += other.squared_sum;
  blocks += other.blocks;
  flattened += other.flattened;
  return *this;
}

const char* refuse_encode(Format to, int64_t cols) {
  if (to != Format::kMxfp4 && to != Format::kMxfp8 && to != Format::kNvfp4)
    return "there is no encoder to this format";
  if (cols % format_row(to).block_elems == 0) return nullptr;
  return to == Format::kNvfp4 ? "its columns are not a multiple of 16"
                              : "its columns are not a multiple of 32";
}

std::optional<EncodeLoss> encode_rows(Format to, int64_t rows, int64_t cols, const uint16_t* bf16,
                                      const RowBytes& out) {
  CHECK(refuse_encode(to, cols) == nullptr);
  const FormatRow& format = format_row(to);
  const int64_t blocks = cols / format.block_elems;
  EncodeLoss loss;
  for (int64_t r = 0; r < rows; ++r, bf16 += cols) {
    float largest = 0;
    for (int64_t k = 0; k < cols; ++k) {
      if ((bf16[k] & 0x7f80) == 0x7f80) return std::nullopt;
      largest = std::max(largest, std::fabs(bf16_to_float(bf16[k])));
    }
    const float row_scale = format.row_scales ? nvfp4_row_scale(largest) : 1;
    if (format.row_scales) out.row_scales[r] = row_scale;
    for (int64_t b = 0; b < blocks; ++b) {
      float values[kMostBlockElems], decoded[kMostBlockElems];
      for (int i = 0; i < format.block_elems; ++i)
        values[i] = bf16_to_float(bf16[b * format.block_elems + i]);
      const int64_t at = r * blocks + b;
      encode_block(to, values, row_scale, out.codes + at * format.code_bytes, out.scales + at,
                   decoded);
      count(values, decoded, format.block_elems, loss);
    }
  }
  return loss;
}

}  // namespace nibble
