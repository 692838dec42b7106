#include "engine/row_history.h"

#include <utility>

#include "ops/draft_head/draft_head.h"

namespace nibble {

RowHistory::RowHistory(std::vector<Tensor> kept, const ops::Ctx& cx, int32_t num_slots,
                       int32_t length)
    : kept_(std::move(kept)), length_(length) {
  for (const Tensor& rows : kept_) {
    const int64_t num = int64_t{num_slots} * length, width = rows.dim(1);
    const int64_t bytes = num * width * static_cast<int64_t>(sizeof(float));
    Buffer& memory = memory_.emplace_back(cx.on_gpu() ? cx.allocate(bytes) : Buffer(bytes));
    rows_.push_back(make_tensor(memory.data(), DType::kF32, {num, width}));
  }
}

void RowHistory::keep(ops::Ctx& cx, const Step& step) {
  ops::put_rows_by(cx, rows_, kept_, length_, step);
}

}  // namespace nibble
