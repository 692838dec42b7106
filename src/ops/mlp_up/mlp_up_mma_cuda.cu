// mlp_up for many tokens by mma.sync, with weights in tiles: the norm, then the GEMM, whose
// epilogue SwiGLU is.
#include "ops/gpu_matmul/gemm_mma.h"
#include "ops/mlp_up/mlp_up.h"
#include "ops/norm/add_norm.h"

namespace nibble::ops::gpu {

void mlp_up_mma(Ctx& cx, const MlpUpOut& out, const Tensor& x, const Tensor& d, const Norm& norm,
                const Weight& up, const Swiglu& act) {
  if (x.dim(0) == 0) return;
  add_norm(cx, norm_for(out, x, d, norm));
  mma::gemm(
      cx, up, GemmOut::kSwiglu,
      {.x = out.h.data, .y = out.u.data, .num_slots = static_cast<int32_t>(x.dim(0)), .act = act});
}

}  // namespace nibble::ops::gpu
