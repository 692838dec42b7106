// Encoding rows of bf16 into a block format, and what that loses.
#pragma once

#include <cstdint>
#include <optional>

#include "formats/format.h"
#include "formats/layout.h"

namespace nibble {

// What encoding lost. A block is flattened where more than half of its nonzero values became zero:
// an outlier took the range that they needed. Of normally distributed values MXFP4 zeroes about one
// in ten.
struct EncodeLoss {
  double squared_error = 0;
  double squared_sum = 0;  // of the values
  int64_t blocks = 0;
  int64_t flattened = 0;

  double relative_rms() const;  // of the error, over that of the values
  double flattened_share() const {
    return blocks == 0 ? 0 : static_cast<double>(flattened) / blocks;
  }
  EncodeLoss& operator+=(const EncodeLoss& other);
};

// Whether rows of `cols` bf16 elements can be encoded so: nullptr, or why not.
const char* refuse_encode(Format to, int64_t cols);

// `rows` rows of `cols` elements to kMxfp4, kMxfp8 or kNvfp4 in Layout::kRows, each block with
// least squared error: the same bytes however rows are split. nullopt where a value is infinite or
// NaN.
std::optional<EncodeLoss> encode_rows(Format to, int64_t rows, int64_t cols, const uint16_t* bf16,
                                      const RowBytes& out);

}  // namespace nibble
