// Rows of a weight as they lie in memory (Layout::kRows), read from the tensors that it is made of
// on disk, whatever their dialect.
#pragma once

#include <string>
#include <vector>

#include "formats/layout.h"
#include "io/checkpoint.h"

namespace nibble {

class WeightRows {
 public:
  WeightRows(const Checkpoint& checkpoint, RangeReader reader)
      : checkpoint_(&checkpoint), reader_(std::move(reader)) {}

  // Rows [row, row + rows) of the weight's rows of K elements, experts' one behind the other; `row`
  // a multiple of 8. Throws Error(kCheckpoint) naming the tensor where a scale is damaged: NaN,
  // infinite or negative, or, of rows and whole matrices, zero; or where an FP8 element is NaN.
  void read(const WeightInfo& weight, int64_t row, int64_t rows, const RowBytes& to);

 private:
  void read_bytes(const TensorInfo& tensor, int64_t begin, int64_t bytes, void* to) {
    reader_({&tensor, begin, bytes, static_cast<std::byte*>(to)});
  }
  // Elements [begin, begin + n) of an F32, F16 or BF16 tensor.
  std::vector<float> read_floats(const TensorInfo& tensor, int64_t begin, int64_t n);
  void read_row_scales(const WeightInfo& weight, int64_t row, int64_t rows, float* to);
  // One scale for 128 x 128 elements to one for 128 of each row.
  void spread_block_scales(const WeightInfo& weight, int64_t row, int64_t rows, uint8_t* to);
  // INT4 of compressed-tensors lies by rows, AWQ's by columns: `row` and `rows` are multiples of 8,
  // but for the last rows of the former.
  void read_int4_groups(const WeightInfo& weight, int64_t row, int64_t rows, uint8_t* to);
  void read_awq_codes(const WeightInfo& weight, int64_t row, int64_t rows, uint8_t* to);
  [[noreturn]] void fail(const TensorInfo& tensor, const std::string& what) const;

  const Checkpoint* checkpoint_;
  RangeReader reader_;
};

}  // namespace nibble
