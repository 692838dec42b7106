#include "formats/encode.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "formats/bf16.h"
#include "formats/mxfp4.h"
#include "formats/mxfp8.h"

namespace nibble {
namespace {

constexpr int kBlock = 32;

// Encodes one block to `codes` and `scale`; `decoded` gets what they stand for.
void encode_block(Format to, const float* values, uint8_t* codes, uint8_t* scale, float* decoded) {
  if (to == Format::kMxfp4) {
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

void count(const float* values, const float* decoded, EncodeLoss& loss) {
  double error = 0, sum = 0;
  int nonzero = 0, kept = 0;
  for (int i = 0; i < kBlock; ++i) {
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
  if (to != Format::kMxfp4 && to != Format::kMxfp8) return "there is no encoder to this format";
  if (cols % kBlock != 0) return "its columns are not a multiple of 32";
  return nullptr;
}

std::optional<EncodeLoss> encode_rows(Format to, int64_t rows, int64_t cols, const uint16_t* bf16,
                                      const RowBytes& out) {
  CHECK(refuse_encode(to, cols) == nullptr);
  const int code_bytes = format_row(to).code_bytes;
  EncodeLoss loss;
  for (int64_t b = 0; b < rows * cols / kBlock; ++b) {
    float values[kBlock], decoded[kBlock];
    bool finite = true;
    for (int i = 0; i < kBlock; ++i) {
      const uint16_t bits = bf16[b * kBlock + i];
      finite &= (bits & 0x7f80) != 0x7f80;
      values[i] = bf16_to_float(bits);
    }
    if (!finite) return std::nullopt;
    encode_block(to, values, out.codes + b * code_bytes, out.scales + b, decoded);
    count(values, decoded, loss);
  }
  return loss;
}

}  // namespace nibble
