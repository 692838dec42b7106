// mlp_up by SM12x's block-scaled mma: the norm, E4M3 or E2M1 of it, then the GEMM, whose epilogue
// SwiGLU is.
#include "ops/gpu_matmul/gemm_scaled_sm12x.h"
#include "ops/mlp_up/mlp_up.h"
#include "ops/norm/add_norm.h"

namespace nibble::ops::gpu {
namespace {

template <ActFormat kInputs>
void up_of(Ctx& cx, const MlpUpOut& out, const Tensor& x, const Tensor& d, const Norm& norm,
           const Weight& up, const Swiglu& act) {
  if (x.dim(0) == 0) return;
  add_norm(cx, norm_for(out, x, d, norm));
  Scratch scratch(cx.scratch);
  const sm12x::InputRows h =
      sm12x::quantize_rows(cx, scratch, kInputs, up, out.h.as<uint16_t>(), x.dim(0));
  sm12x::gemm_scaled(cx, kInputs, up, GemmOut::kSwiglu,
                     {.x = h.codes,
                      .y = out.u.data,
                      .num_slots = static_cast<int32_t>(x.dim(0)),
                      .act = act,
                      .x_scale = h.scales});
}

}  // namespace

void mlp_up_block_scaled(Ctx& cx, const MlpUpOut& out, const Tensor& x, const Tensor& d,
                         const Norm& norm, const Weight& up, const Swiglu& act) {
  up_of<ActFormat::kFp8>(cx, out, x, d, norm, up, act);
}

void mlp_up_w4a4(Ctx& cx, const MlpUpOut& out, const Tensor& x, const Tensor& d, const Norm& norm,
                 const Weight& up, const Swiglu& act) {
  up_of<ActFormat::kFp4>(cx, out, x, d, norm, up, act);
}

}  // namespace nibble::ops::gpu
