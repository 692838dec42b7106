// norm_linear for many tokens: the norm, then the dense wgmma GEMM, with weights in tiles by slices
// of K where row tiles are too few to fill the GPU.
#include "ops/gpu_matmul/gemm_sm90.h"
#include "ops/gpu_matmul/unit_f16_products.h"
#include "ops/norm/add_norm.h"
#include "ops/norm_linear/norm_linear.h"
#include "ops/scratch.h"

namespace nibble::ops::gpu {

void norm_linear_f16(Ctx& cx, const NormLinearOut& out, const Tensor& x, const Tensor& d,
                     const Norm& norm, const Weight& in) {
  Scratch scratch(cx.scratch);
  norm_multiply_f16(cx, scratch, norm_for(out, x, d, norm), in, out.p.as<float>());
}

void norm_linear_gemm(Ctx& cx, const NormLinearOut& out, const Tensor& x, const Tensor& d,
                      const Norm& norm, const Weight& in) {
  const int64_t tokens = x.dim(0);
  if (tokens == 0) return;
  add_norm(cx, norm_for(out, x, d, norm));
  if (!has_slices(in.format)) return gemm(cx, in, out.h.as<uint16_t>(), tokens, out.p.as<float>());
  Scratch scratch(cx.scratch);
  gemm_slices(cx, scratch, in, out.h.as<uint16_t>(), tokens, out.p.as<float>());
}

}  // namespace nibble::ops::gpu
