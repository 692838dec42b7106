#include "ops/sample/whole_logits.h"

#include "base/check.h"
#include "ops/kernel_table.h"

namespace nibble::ops {

Tensor whole_logits(Ctx& cx, const Tensor& whole, const Tensor& mine, const VocabCut& cut) {
  constexpr WholeLogitsFn* kKernel = NIBBLE_CUDA_KERNEL(gpu::whole_logits);
  CHECK(kKernel != nullptr && cx.on_gpu());
  return kKernel(cx, whole, mine, cut);
}

}  // namespace nibble::ops
