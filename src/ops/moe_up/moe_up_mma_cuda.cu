// moe_up for many rows an expert by mma.sync: SwiGLU is the GEMM's epilogue.
#include "ops/gpu_matmul/gemm_mma.h"
#include "ops/moe_up/moe_up.h"

namespace nibble::ops::gpu {

void moe_up_mma(Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing, const Weight& up,
                const Swiglu& act) {
  mma::gemm(cx, up, act.is_relu2() ? GemmOut::kRelu2 : GemmOut::kSwiglu,
            {.x = h.data,
             .token = routing.token,
             .offsets = routing.offsets,
             .y = u.data,
             .num_slots = routing.num_tokens * routing.top_k,
             .act = act});
}

}  // namespace nibble::ops::gpu
