// norm_linear for many tokens: the norm, then the dense wgmma GEMM, with weights in tiles by slices
// of K where row tiles are too few to fill the GPU.
#include "ops/gpu_matmul/gemm_sm90.h"
#include "ops/norm/add_norm.h"
#include "ops/norm_linear/norm_linear.h"
#include "ops/scratch.h"

namespace nibble::ops::gpu {

void norm_linear_gemm(Ctx& cx, const NormLinearOut& out, const Tensor& x, const Tensor& d,
                      const Norm& norm, const Weight& in) {
  const int64_t tokens = x.dim(0);
  if (tokens == 0) return;
  add_norm(cx, {.y = out.y.as<float>(),
                .h = out.h.as<uint16_t>(),
                .x = x.as<float>(),
                .d = d.as<float>(),
                .norm = norm,
                .tokens = tokens,
                .hidden = in.cols});
  if (!has_slices(in.format)) return gemm(cx, in, out.h.as<uint16_t>(), tokens, out.p.as<float>());
  Scratch scratch(cx.scratch);
  gemm_slices(cx, scratch, in, out.h.as<uint16_t>(), tokens, out.p.as<float>());
}

}  // namespace nibble::ops::gpu
