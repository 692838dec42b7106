// moe_up for many rows an expert: the grouped wgmma GEMM with SwiGLU as its epilogue, of bf16 or of
// E4M3 activations.
#include "ops/gpu_matmul/gemm_fp8_sm90.h"
#include "ops/moe_up/moe_up.h"

namespace nibble::ops::gpu {

void moe_up_gemm(Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing,
                 const Weight& up, const Swiglu& act) {
  gemm(cx, up, act.is_relu2() ? GemmOut::kRelu2 : GemmOut::kSwiglu,
       {.x = h.as<uint16_t>(),
        .token = routing.token,
        .offsets = routing.offsets,
        .y = u.data,
        .num_slots = routing.num_tokens * routing.top_k,
        .act = act});
}

void moe_up_gemm_fp8(Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing,
                     const Weight& up, const Swiglu& act) {
  if (routing.num_tokens == 0) return;
  Scratch scratch(cx.scratch);
  const E4m3Rows x = quantize_rows(cx, scratch, h.as<uint16_t>(), routing.num_tokens, up.cols);
  gemm_fp8(cx, up, GemmOut::kSwiglu,
           {.x = x.codes,
            .token = routing.token,
            .offsets = routing.offsets,
            .y = u.data,
            .num_slots = routing.num_tokens * routing.top_k,
            .act = act,
            .x_scale = x.scales});
}

}  // namespace nibble::ops::gpu
