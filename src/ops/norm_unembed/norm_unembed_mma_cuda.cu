// norm_unembed for many rows by mma.sync: norm of the rows wanted, then the GEMM.
#include "ops/gpu_matmul/gemm_mma.h"
#include "ops/norm_unembed/norm_rows.h"

namespace nibble::ops::gpu {

void norm_unembed_mma(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x,
                      const Tensor& d, const Norm& norm, const Weight& unembed, const Step& s) {
  if (s.num_out == 0) return;
  add_norm(cx, norm_rows(h, x, d, norm, s));
  mma::gemm(cx, unembed, GemmOut::kF32, {.x = h.data, .y = logits.data, .num_slots = s.num_out});
}

}  // namespace nibble::ops::gpu
