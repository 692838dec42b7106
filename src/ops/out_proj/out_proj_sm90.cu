// out_proj for many tokens: the dense wgmma GEMM.
#include "ops/linear/gemm_sm90.h"
#include "ops/out_proj/out_proj.h"

namespace nibble::ops::gpu {

void out_proj_gemm(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out, const Step& s) {
  gemm(cx, out, att.as<uint16_t>(), s.num_tokens, d.as<float>());
}

}  // namespace nibble::ops::gpu
