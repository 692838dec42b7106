// norm_linear for many tokens by mma.sync: the norm, then the GEMM.
#include "ops/gpu_matmul/gemm_mma.h"
#include "ops/norm/add_norm.h"
#include "ops/norm_linear/norm_linear.h"

namespace nibble::ops::gpu {

void norm_linear_mma(Ctx& cx, const NormLinearOut& out, const Tensor& x, const Tensor& d,
                     const Norm& norm, const Weight& in) {
  const int64_t tokens = x.dim(0);
  if (tokens == 0) return;
  add_norm(cx, norm_for(out, x, d, norm));
  mma::gemm(cx, in, GemmOut::kF32,
            {.x = out.h.data, .y = out.p.data, .num_slots = static_cast<int32_t>(tokens)});
}

}  // namespace nibble::ops::gpu
