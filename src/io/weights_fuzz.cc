// The tensors of a file, taken for weights: names, dtypes and shapes that do not belong together.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "formats/layout.h"
#include "io/checkpoint.h"

namespace nibble {
namespace {

class Headers : public Checkpoint {
 public:
  explicit Headers(std::vector<TensorInfo> tensors) : tensors_(std::move(tensors)) {
    std::sort(tensors_.begin(), tensors_.end(),
              [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  }
  const std::string& origin() const override { return origin_; }
  std::span<const TensorInfo> tensors() const override { return tensors_; }
  RangeReader make_reader() const override { return {}; }
  int num_readers() const override { return 1; }

 private:
  std::string origin_ = "fuzz";
  std::vector<TensorInfo> tensors_;
};

}  // namespace
}  // namespace nibble

// The first byte is how many KiB of data the file would have.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nibble;
  if (size < 1) return 0;
  const std::string_view header(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto file_bytes = static_cast<int64_t>(8 + header.size() + 1024 * data[0]);
  try {
    const Headers checkpoint(parse_safetensors_header(header, file_bytes, "fuzz"));
    for (const WeightInfo& w : list_weights(checkpoint)) {
      CHECK(w.codes != nullptr && !w.name.empty());
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
