// out_proj by SM12x's block-scaled mma, of E4M3 activations.
#include "ops/gpu_matmul/gemm_fp8_sm12x.h"
#include "ops/out_proj/out_proj.h"

namespace nibble::ops::gpu {

void out_proj_block_scaled(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out,
                           const Step& s) {
  Scratch scratch(cx.scratch);
  sm12x::gemm_fp8(cx, scratch, out, att.as<uint16_t>(), s.num_tokens, d.as<float>());
}

}  // namespace nibble::ops::gpu
