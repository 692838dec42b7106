// moe_up by SM12x's block-scaled mma, of E4M3 activations: SwiGLU is its epilogue.
#include "ops/gpu_matmul/gemm_fp8_sm12x.h"
#include "ops/moe_up/moe_up.h"

namespace nibble::ops::gpu {

void moe_up_block_scaled(Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing,
                         const Weight& up, const Swiglu& act) {
  if (routing.num_tokens == 0) return;
  Scratch scratch(cx.scratch);
  const E4m3Rows x = sm12x::quantize_rows(cx, scratch, up, h.as<uint16_t>(), routing.num_tokens);
  sm12x::gemm_fp8(cx, up, GemmOut::kSwiglu,
                  {.x = x.codes,
                   .token = routing.token,
                   .offsets = routing.offsets,
                   .y = u.data,
                   .num_slots = routing.num_tokens * routing.top_k,
                   .act = act,
                   .x_scale = x.scales});
}

}  // namespace nibble::ops::gpu
