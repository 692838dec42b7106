// mlp_up by SM12x's block-scaled mma: the norm, E4M3 of it, then the GEMM, whose epilogue SwiGLU
// is.
#include "ops/gpu_matmul/gemm_fp8_sm12x.h"
#include "ops/mlp_up/mlp_up.h"
#include "ops/norm/add_norm.h"

namespace nibble::ops::gpu {

void mlp_up_block_scaled(Ctx& cx, const MlpUpOut& out, const Tensor& x, const Tensor& d,
                         const Norm& norm, const Weight& up, const Swiglu& act) {
  if (x.dim(0) == 0) return;
  add_norm(cx, {.y = out.y.as<float>(),
                .h = out.h.as<uint16_t>(),
                .x = x.as<float>(),
                .d = d.as<float>(),
                .norm = norm,
                .tokens = x.dim(0),
                .hidden = x.dim(1)});
  Scratch scratch(cx.scratch);
  const E4m3Rows h = sm12x::quantize_rows(cx, scratch, up, out.h.as<uint16_t>(), x.dim(0));
  sm12x::gemm_fp8(cx, up, GemmOut::kSwiglu,
                  {.x = h.codes,
                   .y = out.u.data,
                   .num_slots = static_cast<int32_t>(x.dim(0)),
                   .act = act,
                   .x_scale = h.scales});
}

}  // namespace nibble::ops::gpu
