// out_proj by SM12x's block-scaled mma, of activations in E4M3 or E2M1.
#include "ops/gpu_matmul/gemm_scaled_sm12x.h"
#include "ops/out_proj/out_proj.h"

namespace nibble::ops::gpu {

void out_proj_block_scaled(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out,
                           const Step& s) {
  Scratch scratch(cx.scratch);
  sm12x::gemm_scaled(cx, scratch, ActFormat::kFp8, out, att.as<uint16_t>(), s.num_tokens,
                     d.as<float>());
}

void out_proj_w4a4(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out, const Step& s) {
  Scratch scratch(cx.scratch);
  sm12x::gemm_scaled(cx, scratch, ActFormat::kFp4, out, att.as<uint16_t>(), s.num_tokens,
                     d.as<float>());
}

}  // namespace nibble::ops::gpu
