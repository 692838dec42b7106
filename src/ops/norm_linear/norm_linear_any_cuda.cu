// norm_linear by products that leave float32: of any shape and format (cuda_any:
// ops/gpu_matmul/product_any.cuh), of few tokens with NVFP4 or FP8 weights (unit_gemv.cuh),
// and of one with NVFP4 (unit_one.cuh).
// p [T, N] f32, h [T, H] bf16, y [T, H] f32, out; x, d [T, H] f32; in [N, H] in kRows, or in
// kTiles16x64.
#include "ops/gpu_matmul/product_any.h"
#include "ops/gpu_matmul/unit_products.h"
#include "ops/norm/add_norm.h"
#include "ops/norm_linear/norm_linear.h"

namespace nibble::ops::gpu {
void norm_linear_any(Ctx& cx, const NormLinearOut& out, const Tensor& x, const Tensor& d,
                     const Norm& norm, const Weight& in) {
  if (x.dim(0) == 0) return;
  add_norm_any(cx, norm_for(out, x, d, norm));
  multiply_any(cx, in, out.h.as<uint16_t>(), x.dim(0), out.p.as<float>());
}

void norm_linear_one(Ctx& cx, const NormLinearOut& out, const Tensor& x, const Tensor& d,
                     const Norm& norm, const Weight& in) {
  if (x.dim(0) == 0) return;
  norm_multiply_one(cx, norm_for(out, x, d, norm), in, out.p.as<float>());
}

void norm_linear_few(Ctx& cx, const NormLinearOut& out, const Tensor& x, const Tensor& d,
                     const Norm& norm, const Weight& in) {
  if (x.dim(0) == 0) return;
  norm_multiply_few(cx, norm_for(out, x, d, norm), in, out.p.as<float>());
}

}  // namespace nibble::ops::gpu
