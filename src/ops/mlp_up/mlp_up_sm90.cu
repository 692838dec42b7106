// mlp_up of more tokens: the norm, then a wgmma product with SwiGLU as its epilogue: K shared out
// to clusters (gemm_split_sm90.cuh), NVFP4 or BF16 rows that stream (gemm_stream_sm90.cuh,
// gemm_rows_sm90.cuh), or the GEMM of many rows, of tiles or BF16 rows; with --activations fp8 of
// FP8 tiles.
#include "ops/gpu_matmul/gemm_fp8_sm90.h"
#include "ops/gpu_matmul/rows_products.h"
#include "ops/gpu_matmul/unit_f16_products.h"
#include "ops/gpu_matmul/unit_products.h"
#include "ops/mlp_up/mlp_up.h"
#include "ops/norm/add_norm.h"

namespace nibble::ops::gpu {
namespace {

void norm_rows(Ctx& cx, const MlpUpOut& out, const Tensor& x, const Tensor& d, const Norm& norm,
               const E4m3Rows& e4m3 = {}) {
  AddNorm all = norm_for(out, x, d, norm);
  all.e4m3 = e4m3;
  add_norm(cx, all);
}

}  // namespace

void mlp_up_f16(Ctx& cx, const MlpUpOut& out, const Tensor& x, const Tensor& d, const Norm& norm,
                const Weight& up, const Swiglu& act) {
  Scratch scratch(cx.scratch);
  norm_swiglu_f16(cx, scratch, norm_for(out, x, d, norm), up, act, out.u.as<uint16_t>());
}

void mlp_up_split(Ctx& cx, const MlpUpOut& out, const Tensor& x, const Tensor& d, const Norm& norm,
                  const Weight& up, const Swiglu& act) {
  if (x.dim(0) == 0) return;
  norm_rows(cx, out, x, d, norm);
  swiglu_split(cx, up, out.h.as<uint16_t>(), x.dim(0), act, out.u.as<uint16_t>());
}

void mlp_up_stream(Ctx& cx, const MlpUpOut& out, const Tensor& x, const Tensor& d, const Norm& norm,
                   const Weight& up, const Swiglu& act) {
  if (x.dim(0) == 0) return;
  Scratch scratch(cx.scratch);
  norm_rows(cx, out, x, d, norm);
  swiglu_stream(cx, scratch, up, out.h.as<uint16_t>(), x.dim(0), act, out.u.as<uint16_t>());
}

void mlp_up_rows_stream(Ctx& cx, const MlpUpOut& out, const Tensor& x, const Tensor& d,
                        const Norm& norm, const Weight& up, const Swiglu& act) {
  if (x.dim(0) == 0) return;
  Scratch scratch(cx.scratch);
  norm_rows(cx, out, x, d, norm);
  swiglu_rows_sm90(cx, scratch, up, out.h.as<uint16_t>(), x.dim(0), act, out.u.as<uint16_t>());
}

void mlp_up_gemm(Ctx& cx, const MlpUpOut& out, const Tensor& x, const Tensor& d, const Norm& norm,
                 const Weight& up, const Swiglu& act) {
  if (x.dim(0) == 0) return;
  norm_rows(cx, out, x, d, norm);
  gemm(cx, up, GemmOut::kSwiglu,
       {.x = out.h.data, .y = out.u.data, .num_slots = static_cast<int32_t>(x.dim(0)), .act = act});
}

void mlp_up_gemm_fp8(Ctx& cx, const MlpUpOut& out, const Tensor& x, const Tensor& d,
                     const Norm& norm, const Weight& up, const Swiglu& act) {
  if (x.dim(0) == 0) return;
  Scratch scratch(cx.scratch);
  const E4m3Rows h = take_e4m3_rows(scratch, x.dim(0), up.cols);
  norm_rows(cx, out, x, d, norm, h);
  gemm_fp8(cx, up, GemmOut::kSwiglu,
           {.x = h.codes,
            .y = out.u.data,
            .num_slots = static_cast<int32_t>(x.dim(0)),
            .act = act,
            .x_scale = h.scales});
}

}  // namespace nibble::ops::gpu
