// The tensors of a file, taken for weights: names, dtypes and shapes that do not belong together.
// What goes together is read, its bytes those of the input again and again.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "formats/layout.h"
#include "io/checkpoint.h"
#include "io/weight_rows.h"

namespace nibble {
namespace {

class Headers : public Checkpoint {
 public:
  Headers(std::vector<TensorInfo> tensors, std::string_view bytes)
      : tensors_(std::move(tensors)), bytes_(bytes) {
    std::sort(tensors_.begin(), tensors_.end(),
              [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  }
  const std::string& origin() const override { return origin_; }
  std::span<const TensorInfo> tensors() const override { return tensors_; }
  RangeReader make_reader() const override {
    return [this](const ReadJob& job) {
      CHECK(job.begin >= 0 && job.bytes >= 0 && job.begin + job.bytes <= job.tensor->bytes);
      for (int64_t i = 0; i < job.bytes; ++i)
        job.to[i] =
            static_cast<std::byte>(bytes_[static_cast<size_t>(job.begin + i) % bytes_.size()]);
    };
  }
  int num_readers() const override { return 1; }

 private:
  std::string origin_ = "fuzz";
  std::vector<TensorInfo> tensors_;
  std::string_view bytes_;
};

// All rows of a weight that is not too large, into arrays of just their size.
void read_rows(const Headers& checkpoint, const WeightInfo& weight) {
  const int64_t cols = weight.shape.back();
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < weight.shape.size(); ++i) rows *= weight.shape[i];
  if (rows * cols == 0 || rows * cols > 1 << 16) return;
  std::vector<uint8_t> codes(
      static_cast<size_t>(rows * row_code_bytes(weight.format, Layout::kRows, cols)));
  std::vector<uint8_t> scales(
      static_cast<size_t>(rows * row_scale_bytes(weight.format, Layout::kRows, cols)));
  std::vector<float> row_scales(static_cast<size_t>(rows));
  WeightRows(checkpoint, checkpoint.make_reader())
      .read(weight, 0, rows, {codes.data(), scales.data(), row_scales.data()});
}

}  // namespace
}  // namespace nibble

// The first byte is how many KiB of data the file would have.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nibble;
  if (size < 1) return 0;
  const std::string_view header(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto file_bytes = static_cast<int64_t>(8 + header.size() + 1024 * data[0]);
  try {
    const Headers checkpoint(parse_safetensors_header(header, file_bytes, "fuzz"), header);
    for (const WeightInfo& w : list_weights(checkpoint)) {
      CHECK(w.codes != nullptr && !w.name.empty());
      if (w.shape.size() >= 2) read_rows(checkpoint, w);
      if (w.shape.size() != 2) continue;
      // What reads rows stays within the tensors.
      const int64_t rows = w.shape[0], cols = w.shape[1];
      CHECK(rows * row_code_bytes(w.format, Layout::kRows, cols) <= w.codes->bytes);
      // Scales of FP8 blocks and of INT4 groups become more.
      const bool is_as_it_lies =
          w.format == Format::kNvfp4 || w.format == Format::kMxfp4 || w.format == Format::kMxfp8;
      if (w.scales != nullptr && is_as_it_lies)
        CHECK(rows * row_scale_bytes(w.format, Layout::kRows, cols) <= w.scales->bytes);
      CHECK(w.row_scales == nullptr || w.row_scales->bytes > 0);
    }
  } catch (const Error&) {
  }
  return 0;
}
