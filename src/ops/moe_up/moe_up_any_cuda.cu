// moe_up of any shape and format (cuda_any): the product of ops/gpu_matmul/product_any.cuh with
// SwiGLU or relu^2 as its epilogue.
// u [T * K, F] bf16 by slot, out; h [T, H] bf16; up [E, 2F, H] in kRows.
#include "ops/gpu_matmul/product_any.cuh"
#include "ops/moe_up/moe_up.h"
#include "ops/moe_up/store_up.cuh"

namespace nibble::ops::gpu {
void moe_up_any(Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing, const Weight& up,
                const Swiglu& act) {
  CHECK(routing.logits == nullptr);
  any::multiply(cx, up, h.as<uint16_t>(), int64_t{routing.num_tokens} * routing.top_k, &routing,
                /*by_token=*/true, StoreUp{u.as<uint16_t>(), up.rows / act.rows_each(), act});
}

}  // namespace nibble::ops::gpu
