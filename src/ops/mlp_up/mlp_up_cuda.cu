// mlp_up of few tokens with NVFP4 weights in kTiles16x64: the norm and a product with SwiGLU as its
// epilogue (gpu_matmul/unit_gemv.cuh), for one token together (unit_one.cuh).
// u [T, F], h [T, H] bf16, y [T, H] f32, out; x, d [T, H] f32; up [2F, H]. Needs H <= 9,216.
#include "ops/gpu_matmul/unit_products.h"
#include "ops/mlp_up/mlp_up.h"

namespace nibble::ops::gpu {

void mlp_up_few(Ctx& cx, const MlpUpOut& out, const Tensor& x, const Tensor& d, const Norm& norm,
                const Weight& up, const Swiglu& act) {
  norm_swiglu_few(cx, norm_for(out, x, d, norm), up, act, out.u.as<uint16_t>());
}

void mlp_up_one(Ctx& cx, const MlpUpOut& out, const Tensor& x, const Tensor& d, const Norm& norm,
                const Weight& up, const Swiglu& act) {
  if (x.dim(0) == 0) return;
  norm_swiglu_one(cx, norm_for(out, x, d, norm), up, act, out.u.as<uint16_t>());
}

}  // namespace nibble::ops::gpu
