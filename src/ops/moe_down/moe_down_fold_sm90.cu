// moe_down for some rows an expert, by wgmma in FP8 that keeps bf16's bits (gemv_fold_sm90.cuh).
#include "ops/linear/gemv_fold_sm90.cuh"
#include "ops/moe_down/down_by_slot.cuh"
#include "ops/moe_down/moe_down.h"

namespace nibble::ops::gpu {

void moe_down_fold(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                   const Weight& down) {
  down_by_slot(cx, d, u, routing, down, [&](const DownBySlot& op, Scratch& scratch) {
    const int64_t slots = int64_t{routing.num_tokens} * routing.top_k;
    sm90::launch_fold(cx, scratch, down, op.u, slots, op);
  });
}

}  // namespace nibble::ops::gpu
