#include "io/weight_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "formats/bf16.h"
#include "formats/f16.h"
#include "formats/fp8_block.h"
#include "formats/int4.h"
#include "formats/nvfp4.h"

namespace nibble {
namespace {

std::string rows_text(int64_t row, int64_t rows) {
  return "rows " + std::to_string(row) + " to " + std::to_string(row + rows - 1);
}

// The nibble of column c of eight in a word of AWQ's.
constexpr int kAwqNibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};

uint8_t nibble_of(uint32_t word, int at) { return static_cast<uint8_t>(word >> (4 * at) & 15); }

bool is_int4(Format format) { return format == Format::kInt4G32 || format == Format::kInt4G128; }

bool is_e4m3_nan(uint8_t code) { return (code & 0x7f) == 0x7f; }

}  // namespace

void WeightRows::fail(const TensorInfo& tensor, const std::string& what) const {
  throw Error(ErrorKind::kCheckpoint,
              checkpoint_->origin() + ": tensor \"" + tensor.name + "\": " + what);
}

std::vector<float> WeightRows::read_floats(const TensorInfo& tensor, int64_t begin, int64_t n) {
  std::vector<float> values(n);
  if (tensor.dtype == DType::kF32) {
    read_bytes(tensor, 4 * begin, 4 * n, values.data());
    return values;
  }
  std::vector<uint16_t> bits(n);
  read_bytes(tensor, 2 * begin, 2 * n, bits.data());
  for (int64_t i = 0; i < n; ++i)
    values[i] = tensor.dtype == DType::kF16 ? f16_to_float(bits[i]) : bf16_to_float(bits[i]);
  return values;
}

void WeightRows::read_row_scales(const WeightInfo& weight, int64_t row, int64_t rows, float* to) {
  const TensorInfo& tensor = *weight.row_scales;
  const bool is_one = tensor.bytes == dtype_bytes(tensor.dtype);
  const std::vector<float> scales = read_floats(tensor, is_one ? 0 : row, is_one ? 1 : rows);
  for (int64_t r = 0; r < rows; ++r) {
    const float scale = scales[is_one ? 0 : r];
    to[r] = weight.is_divisor ? 1 / scale : scale;
    if (std::isfinite(scale) && scale > 0 && std::isfinite(to[r]) && to[r] > 0) continue;
    fail(tensor, "holds " + std::to_string(scale) +
                     (is_one ? "" : " for row " + std::to_string(row + r)) +
                     "; a scale is finite and above zero");
  }
}

void WeightRows::spread_block_scales(const WeightInfo& weight, int64_t row, int64_t rows,
                                     uint8_t* to) {
  const TensorInfo& tensor = *weight.scales;
  const int64_t across = (weight.shape.back() + kFp8BlockElems - 1) / kFp8BlockElems;
  const int64_t first = row / kFp8BlockElems, last = (row + rows - 1) / kFp8BlockElems;
  const std::vector<float> scales =
      read_floats(tensor, first * across, (last - first + 1) * across);
  for (const float scale : scales)
    if (!std::isfinite(scale) || scale < 0)
      fail(tensor, rows_text(row, rows) + " have a scale of " + std::to_string(scale) +
                       "; a scale is finite and not negative");
  for (int64_t r = row; r < row + rows; ++r, to += 4 * across)
    std::memcpy(to, scales.data() + (r / kFp8BlockElems - first) * across, 4 * across);
}

void WeightRows::read_awq_codes(const WeightInfo& weight, int64_t row, int64_t rows, uint8_t* to) {
  const int64_t cols = weight.shape[1], across = weight.shape[0] / 8, words = rows / 8;
  std::vector<uint32_t> line(words);
  std::fill_n(to, rows * cols / 2, uint8_t{0});
  for (int64_t k = 0; k < cols; ++k) {
    read_bytes(*weight.codes, 4 * (k * across + row / 8), 4 * words, line.data());
    for (int64_t r = 0; r < rows; ++r)
      to[(r * cols + k) / 2] |= nibble_of(line[r / 8], kAwqNibble[r % 8]) << (k % 2 * 4);
  }
}

void WeightRows::read_int4_groups(const WeightInfo& weight, int64_t row, int64_t rows,
                                  uint8_t* to) {
  const TensorInfo& tensor = *weight.scales;
  const int64_t all_rows = weight.shape[0];
  const int64_t on_disk = tensor.shape[weight.is_awq ? 0 : 1];  // groups of a row
  const int64_t here = weight.shape[1] / format_row(weight.format).block_elems;
  // All rows of a tensor by columns: scales are a hundredth of the weight.
  const int64_t first = weight.is_awq ? 0 : row, n = weight.is_awq ? all_rows : rows;
  std::vector<uint16_t> scales(n * on_disk);
  read_bytes(tensor, 2 * first * on_disk, 2 * n * on_disk, scales.data());
  std::vector<uint32_t> zeros;
  if (weight.zeros != nullptr) {
    zeros.resize((n + 7) / 8 * on_disk);
    read_bytes(*weight.zeros, 4 * (first / 8 * on_disk), 4 * std::ssize(zeros), zeros.data());
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < here; ++j) {
      const int64_t g = j * on_disk / here, at = row - first + r;
      Int4Group group{.scale = scales[weight.is_awq ? g * all_rows + at : at * on_disk + g],
                      .zero = 8,
                      .is_f16 = tensor.dtype == DType::kF16};
      if (weight.is_awq && !zeros.empty())
        group.zero = nibble_of(zeros[g * (all_rows / 8) + at / 8], kAwqNibble[at % 8]);
      else if (!zeros.empty())
        group.zero = nibble_of(zeros[at / 8 * on_disk + g], static_cast<int>(at % 8));
      if (!std::isfinite(group.value()) || group.value() < 0)
        fail(tensor, "holds " + std::to_string(group.value()) + " for row " +
                         std::to_string(row + r) + "; a scale is finite and not negative");
      std::memcpy(to + (r * here + j) * sizeof(group), &group, sizeof(group));
    }
}

void WeightRows::read(const WeightInfo& weight, int64_t row, int64_t rows, const RowBytes& to) {
  const int64_t cols = weight.shape.back();
  const int64_t code_bytes = row_code_bytes(weight.format, Layout::kRows, cols);
  const int64_t scale_bytes = row_scale_bytes(weight.format, Layout::kRows, cols);
  if (weight.is_awq)
    read_awq_codes(weight, row, rows, to.codes);
  else
    read_bytes(*weight.codes, row * code_bytes, rows * code_bytes, to.codes);
  if (is_int4(weight.format)) return read_int4_groups(weight, row, rows, to.scales);
  const bool is_fp8 = weight.codes->dtype == DType::kF8E4M3;
  if (is_fp8 && std::any_of(to.codes, to.codes + rows * code_bytes, is_e4m3_nan))
    fail(*weight.codes, rows_text(row, rows) + " hold a value that is no number");
  if (weight.row_scales != nullptr) read_row_scales(weight, row, rows, to.row_scales);
  if (weight.scales == nullptr) return;
  if (weight.format == Format::kFp8Block) return spread_block_scales(weight, row, rows, to.scales);
  read_bytes(*weight.scales, row * scale_bytes, rows * scale_bytes, to.scales);
  if (weight.format != Format::kNvfp4) return;
  const uint8_t worst = *std::max_element(to.scales, to.scales + rows * scale_bytes);
  if (worst > kLargestNvfp4Scale)
    fail(*weight.scales, rows_text(row, rows) + " have a block whose scale is " +
                             (is_e4m3_nan(worst) ? "no number" : "negative"));
}

}  // namespace nibble
