// norm_unembed for many rows: norm of the rows wanted, then the dense wgmma GEMM.
#include "ops/gpu_matmul/gemm_fp8_sm90.h"
#include "ops/gpu_matmul/unit_f16_products.h"
#include "ops/norm_unembed/norm_rows.h"

namespace nibble::ops::gpu {

void norm_unembed_f16(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x,
                      const Tensor& d, const Norm& norm, const Weight& unembed, const Step& s) {
  Scratch scratch(cx.scratch);
  norm_multiply_f16(cx, scratch, norm_rows(h, x, d, norm, s), unembed, logits.as<float>());
}

void norm_unembed_gemm(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x,
                       const Tensor& d, const Norm& norm, const Weight& unembed, const Step& s) {
  if (s.num_out == 0) return;
  add_norm(cx, norm_rows(h, x, d, norm, s));
  gemm(cx, unembed, h.as<uint16_t>(), s.num_out, logits.as<float>());
}

void norm_unembed_gemm_fp8(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x,
                           const Tensor& d, const Norm& norm, const Weight& unembed,
                           const Step& s) {
  if (s.num_out == 0) return;
  add_norm(cx, norm_rows(h, x, d, norm, s));
  Scratch scratch(cx.scratch);
  gemm_fp8(cx, scratch, unembed, h.as<uint16_t>(), s.num_out, logits.as<float>());
}

}  // namespace nibble::ops::gpu
