// norm_unembed by products that leave float32: of any shape and format (cuda_any:
// ops/gpu_matmul/product_any.cuh), and of few rows with NVFP4 weights (unit_gemv.cuh).
// logits [R, V] f32, h [R, H] bf16, out; x, d [T, H] f32; unembed [V, H] in kRows, or in
// kTiles16x64.
#include "ops/gpu_matmul/product_any.h"
#include "ops/gpu_matmul/unit_products.h"
#include "ops/norm_unembed/norm_rows.h"

namespace nibble::ops::gpu {

void norm_unembed_any(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x,
                      const Tensor& d, const Norm& norm, const Weight& unembed, const Step& s) {
  if (s.num_out == 0) return;
  add_norm_any(cx, norm_rows(h, x, d, norm, s));
  multiply_any(cx, unembed, h.as<uint16_t>(), s.num_out, logits.as<float>());
}

void norm_unembed_few(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x,
                      const Tensor& d, const Norm& norm, const Weight& unembed, const Step& s) {
  if (s.num_out == 0) return;
  norm_multiply_few(cx, norm_rows(h, x, d, norm, s), unembed, logits.as<float>());
}

void norm_unembed_one(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x,
                      const Tensor& d, const Norm& norm, const Weight& unembed, const Step& s) {
  if (s.num_out == 0) return;
  norm_multiply_one(cx, norm_rows(h, x, d, norm, s), unembed, logits.as<float>());
}

}  // namespace nibble::ops::gpu
