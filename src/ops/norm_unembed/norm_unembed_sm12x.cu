// norm_unembed by SM12x's block-scaled mma: norm of the rows wanted, rounded to E4M3 or E2M1.
#include "ops/gpu_matmul/gemm_scaled_sm12x.h"
#include "ops/norm_unembed/norm_rows.h"

namespace nibble::ops::gpu {
namespace {

template <ActFormat kInputs>
void unembed_of(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x, const Tensor& d,
                const Norm& norm, const Weight& unembed, const Step& s) {
  if (s.num_out == 0) return;
  add_norm(cx, norm_rows(h, x, d, norm, s));
  Scratch scratch(cx.scratch);
  sm12x::gemm_scaled(cx, scratch, kInputs, unembed, h.as<uint16_t>(), s.num_out,
                     logits.as<float>());
}

}  // namespace

void norm_unembed_block_scaled(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x,
                               const Tensor& d, const Norm& norm, const Weight& unembed,
                               const Step& s) {
  unembed_of<ActFormat::kFp8>(cx, logits, h, x, d, norm, unembed, s);
}

void norm_unembed_w4a4(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x,
                       const Tensor& d, const Norm& norm, const Weight& unembed, const Step& s) {
  unembed_of<ActFormat::kFp4>(cx, logits, h, x, d, norm, unembed, s);
}

}  // namespace nibble::ops::gpu
