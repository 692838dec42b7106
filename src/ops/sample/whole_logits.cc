#include "ops/sample/whole_logits.h"

#include <string>

#include "base/check.h"
#include "base/error.h"
#include "cuda/memory.h"
#include "ops/all_reduce/gpu_ranks.h"
#include "ops/kernel_table.h"

namespace nibble::ops {
namespace {

constexpr decltype(gpu::place_columns)* kPlace = NIBBLE_CUDA_KERNEL(gpu::place_columns);
constexpr decltype(gpu::place_among_zeros)* kPlaceAmongZeros =
    NIBBLE_CUDA_KERNEL(gpu::place_among_zeros);
constexpr decltype(gpu::sum_nccl)* kSum = NIBBLE_CUDA_KERNEL(gpu::sum_nccl);

}  // namespace

WholeLogits::WholeLogits(Ctx& cx, const VocabCut& cut, int64_t max_rows)
    : cut_(cut), cuts_(cx.comm->size()) {
  CHECK(kPlace != nullptr && cx.on_gpu());
  gpu::GpuRanks& ranks = gpu::ranks_of(cx);
  ranks.all_gather(std::as_bytes(std::span(&cut_, 1)), std::as_writable_bytes(std::span(cuts_)));
  std::string why;
  try {
    mine_ = cuda::device_buffer(bytes(cut.vocab, max_rows));
  } catch (const Error& e) {
    why = "rank " + std::to_string(ranks.rank()) + ": " + e.what();
  }
  if (ranks.has_peer_memory())
    of_ranks_ = ranks.share(mine_, why);
  else
    why = ranks.agree(why);
  if (!why.empty())
    throw Error(ErrorKind::kUnsupported, "ranks: no room for logits that all GPUs share: " + why);
}

int64_t WholeLogits::bytes(int64_t vocab, int64_t max_rows) {
  return max_rows * vocab * static_cast<int64_t>(sizeof(float));
}

Tensor WholeLogits::gather(Ctx& cx, const Tensor& mine) {
  const int64_t rows = mine.dim(0);
  auto* const room = static_cast<float*>(mine_.data());
  CHECK(!are_apart() && bytes(cut_.vocab, rows) <= mine_.size_bytes());
  const Tensor all = make_tensor(room, DType::kF32, {rows, cut_.vocab});
  if (rows > 0) {
    kPlaceAmongZeros(cx, room, mine, cut_);
    kSum(cx, all);
  }
  cx.wrote({room});
  return all;
}

void WholeLogits::keep(Ctx& cx, const Tensor& mine) {
  CHECK(are_apart() && bytes(cut_.vocab, mine.dim(0)) <= mine_.size_bytes());
  kPlace(cx, static_cast<float*>(mine_.data()), mine, cut_);
}

void WholeLogits::read(Ctx& cx, int64_t row, std::span<float> to) const {
  const auto copy = [&](const Buffer& from, const VocabCut& cut) {
    cuda::copy_async(to.data() + cut.begin,
                     static_cast<const float*>(from.data()) + row * cut.vocab + cut.begin,
                     cut.size * static_cast<int64_t>(sizeof(float)), cx.stream);
  };
  if (!are_apart()) return copy(mine_, {cut_.vocab, 0, cut_.vocab});
  for (size_t r = 0; r < cuts_.size(); ++r) copy(of_ranks_[r], cuts_[r]);
}

}  // namespace nibble::ops
