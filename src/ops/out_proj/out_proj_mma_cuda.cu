// out_proj for many tokens by mma.sync.
#include "ops/gpu_matmul/gemm_mma.h"
#include "ops/out_proj/out_proj.h"

namespace nibble::ops::gpu {

void out_proj_mma(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out, const Step& s) {
  mma::gemm(cx, out, GemmOut::kF32, {.x = att.data, .y = d.data, .num_slots = s.num_tokens});
}

}  // namespace nibble::ops::gpu
