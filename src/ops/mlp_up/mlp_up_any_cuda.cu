// mlp_up of any shape and format (cuda_any): add_norm_any, then the product of
// ops/gpu_matmul/product_any.cuh with SwiGLU or relu^2 as its
// epilogue.
// u [T, F], h [T, H] bf16, y [T, H] f32, out; x, d [T, H] f32; up [2F, H] in kRows.
#include "ops/gpu_matmul/product_any.cuh"
#include "ops/mlp_up/mlp_up.h"
#include "ops/moe_up/store_up.cuh"
#include "ops/norm/add_norm.h"

namespace nibble::ops::gpu {

void mlp_up_any(Ctx& cx, const MlpUpOut& out, const Tensor& x, const Tensor& d, const Norm& norm,
                const Weight& up, const Swiglu& act) {
  const int64_t tokens = x.dim(0);
  if (tokens == 0) return;
  add_norm_any(cx, norm_for(out, x, d, norm));
  any::multiply(cx, up, out.h.as<uint16_t>(), tokens, /*routing=*/nullptr, /*by_token=*/false,
                StoreUp{out.u.as<uint16_t>(), up.rows / act.rows_each(), act});
}

}  // namespace nibble::ops::gpu
