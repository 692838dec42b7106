// mlp_up of few tokens with NVFP4 weights in kTiles16x64: the norm and a product with SwiGLU as its
// epilogue (gpu_matmul/unit_gemv.cuh), together for one token.
// u [T, F], h [T, H] bf16, y [T, H] f32, out; x, d [T, H] f32; up [2F, H]. Needs H <= 9,216.
#include "ops/gpu_matmul/unit_products.h"
#include "ops/mlp_up/mlp_up.h"

namespace nibble::ops::gpu {

void mlp_up_few(Ctx& cx, const MlpUpOut& out, const Tensor& x, const Tensor& d, const Norm& norm,
                const Weight& up, const Swiglu& act) {
  norm_swiglu_few(cx,
                  {.y = out.y.as<float>(),
                   .h = out.h.as<uint16_t>(),
                   .x = x.as<float>(),
                   .d = d.as<float>(),
                   .norm = norm,
                   .tokens = x.dim(0),
                   .hidden = x.dim(1)},
                  up, act, out.u.as<uint16_t>());
}

}  // namespace nibble::ops::gpu
