// moe_up by SM12x's block-scaled mma, of activations in E4M3 or E2M1: SwiGLU or relu^2 is its
// epilogue.
#include "ops/gpu_matmul/gemm_scaled_sm12x.h"
#include "ops/moe_up/moe_up.h"

namespace nibble::ops::gpu {
namespace {

template <ActFormat kInputs>
void up_of(Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing, const Weight& up,
           const Swiglu& act) {
  if (routing.num_tokens == 0) return;
  Scratch scratch(cx.scratch);
  const sm12x::InputRows x =
      sm12x::quantize_rows(cx, scratch, kInputs, up, h.as<uint16_t>(), routing.num_tokens);
  sm12x::gemm_scaled(cx, kInputs, up, act.is_relu2() ? GemmOut::kRelu2 : GemmOut::kSwiglu,
                     {.x = x.codes,
                      .token = routing.token,
                      .offsets = routing.offsets,
                      .y = u.data,
                      .num_slots = routing.num_tokens * routing.top_k,
                      .act = act,
                      .x_scale = x.scales});
}

}  // namespace

void moe_up_block_scaled(Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing,
                         const Weight& up, const Swiglu& act) {
  up_of<ActFormat::kFp8>(cx, u, h, routing, up, act);
}

void moe_up_w4a4(Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing,
                 const Weight& up, const Swiglu& act) {
  up_of<ActFormat::kFp4>(cx, u, h, routing, up, act);
}

}  // namespace nibble::ops::gpu
