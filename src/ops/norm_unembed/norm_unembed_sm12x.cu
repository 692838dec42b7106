// norm_unembed by SM12x's block-scaled mma: norm of the rows wanted, which E4M3 takes.
#include "ops/gpu_matmul/gemm_fp8_sm12x.h"
#include "ops/norm/add_norm.h"
#include "ops/norm_unembed/norm_unembed.h"

namespace nibble::ops::gpu {

void norm_unembed_block_scaled(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x,
                               const Tensor& d, const Norm& norm, const Weight& unembed,
                               const Step& s) {
  if (s.num_out == 0) return;
  add_norm(cx, {.y = nullptr,
                .h = h.as<uint16_t>(),
                .x = x.as<float>(),
                .d = d.as<float>(),
                .norm = norm,
                .tokens = s.num_out,
                .hidden = unembed.cols,
                .rows = s.out_rows});
  Scratch scratch(cx.scratch);
  sm12x::gemm_fp8(cx, scratch, unembed, h.as<uint16_t>(), s.num_out, logits.as<float>());
}

}  // namespace nibble::ops::gpu
