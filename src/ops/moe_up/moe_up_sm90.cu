// moe_up for many rows an expert: the grouped wgmma GEMM with SwiGLU as its epilogue.
#include "ops/linear/gemm_sm90.h"
#include "ops/moe_up/moe_up.h"

namespace nibble::ops::gpu {

void moe_up_gemm(Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing,
                 const Weight& up, float limit) {
  gemm(cx, up, GemmOut::kSwiglu,
       {.x = h.as<uint16_t>(),
        .token = routing.token,
        .offsets = routing.offsets,
        .y = u.data,
        .num_slots = routing.num_tokens * routing.top_k,
        .limit = limit});
}

}  // namespace nibble::ops::gpu
