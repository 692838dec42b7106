#include "ops/sample/draw.h"

#include "base/check.h"
#include "ops/kernel_table.h"

namespace nibble::ops {

void sample_drawn(Ctx& cx, const GreedyOut& out, const Tensor& logits, const uint32_t* never,
                  const Draw* draws) {
  constexpr SampleDrawnFn* kKernel = NIBBLE_CUDA_KERNEL(gpu::sample_drawn);
  CHECK(kKernel != nullptr && cx.on_gpu());
  kKernel(cx, out, logits, never, draws);
}

void sample_drawn_over_ranks(Ctx& cx, const GreedyOut& out, const Tensor& logits,
                             const uint32_t* never, const Draw* draws) {
  constexpr SampleDrawnFn* kKernel = NIBBLE_CUDA_KERNEL(gpu::sample_drawn_over_ranks);
  CHECK(kKernel != nullptr && cx.on_gpu());
  kKernel(cx, out, logits, never, draws);
}

}  // namespace nibble::ops
