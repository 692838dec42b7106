// out_proj by products that leave float32: of any shape and format (cuda_any:
// ops/gpu_matmul/product_any.cuh), and of few tokens with NVFP4 weights (unit_gemv.cuh,
// unit_one.cuh).
// d [T, H] f32, out; att [T, Q * D] bf16; out [H, Q * D] in kRows, or in kTiles16x64.
#include "ops/gpu_matmul/product_any.h"
#include "ops/gpu_matmul/unit_products.h"
#include "ops/out_proj/out_proj.h"

namespace nibble::ops::gpu {

void out_proj_any(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out, const Step& s) {
  multiply_any(cx, out, att.as<uint16_t>(), s.num_tokens, d.as<float>());
}

void out_proj_few(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out, const Step& s) {
  multiply_few(cx, out, att.as<uint16_t>(), s.num_tokens, d.as<float>());
}

void out_proj_one(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out, const Step& s) {
  if (s.num_tokens == 0) return;
  multiply_one(cx, out, att.as<uint16_t>(), s.num_tokens, d.as<float>());
}

}  // namespace nibble::ops::gpu
