// norm_qkv for many tokens: the norm, then the wgmma GEMM, which turns and stores
// (gemm_turn_sm90.cuh). With weights in bf16 three launches, in NVFP4 and FP8 up to four: those
// GEMMs leave products in float32, which cross memory once (8 (Q + 2 G) D bytes a token, 41 KB for
// gpt-oss), then rope and append.
#include "ops/gpu_matmul/gemm_fp8_sm90.h"
#include "ops/gpu_matmul/unit_f16_products.h"
#include "ops/gpu_matmul/unit_products.h"
#include "ops/norm/add_norm.h"
#include "ops/norm_qkv/norm_qkv.h"
#include "ops/norm_qkv/store_qkv.cuh"
#include "ops/scratch.h"

namespace nibble::ops::gpu {
namespace {

AddNorm rows_of(const NormQkvOut& out, const Tensor& x, const Tensor& d, const Norm& norm,
                const Step& s, const E4m3Rows& e4m3) {
  return {.y = out.y.as<float>(),
          .h = out.h.as<uint16_t>(),
          .x = x.as<float>(),
          .d = d.as<float>(),
          .norm = norm,
          .tokens = s.num_tokens,
          .hidden = x.dim(1),
          .e4m3 = e4m3};
}

void norm_of(Ctx& cx, const NormQkvOut& out, const Tensor& x, const Tensor& d, const Norm& norm,
             const Step& s, const E4m3Rows& e4m3) {
  add_norm(cx, rows_of(out, x, d, norm, s, e4m3));
}

}  // namespace

void norm_qkv_f16(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                  const Tensor& d, const QkvNorms& norms, const Weight& qkv, const Tensor& cos_sin,
                  const Step& s) {
  if (s.num_tokens == 0) return;
  Scratch scratch(cx.scratch);
  float* const products = products_of(cx, scratch, s, qkv.rows);
  norm_multiply_f16(cx, scratch, rows_of(out, x, d, norms.input, s, {}), qkv, products);
  store_qkv(cx, qkv_store(out.q, kv, cos_sin, s, out.gate), norms, products);
}

void norm_qkv_gemm(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                   const Tensor& d, const QkvNorms& norms, const Weight& qkv, const Tensor& cos_sin,
                   const Step& s) {
  if (s.num_tokens == 0) return;
  norm_of(cx, out, x, d, norms.input, s, {});
  if (qkv.format == Format::kMxfp4)
    return gemm(
        cx, qkv, GemmOut::kQkv,
        {.x = out.h.data, .num_slots = s.num_tokens, .qkv = qkv_store(out.q, kv, cos_sin, s)});
  Scratch scratch(cx.scratch);
  auto* products = scratch.take<float>(s.num_tokens * qkv.rows);
  gemm_slices(cx, scratch, qkv, out.h.as<uint16_t>(), s.num_tokens, products);
  store_qkv(cx, qkv_store(out.q, kv, cos_sin, s, out.gate), norms, products);
}

void norm_qkv_unit_gemm(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                        const Tensor& d, const QkvNorms& norms, const Weight& qkv,
                        const Tensor& cos_sin, const Step& s) {
  if (s.num_tokens == 0) return;
  norm_of(cx, out, x, d, norms.input, s, {});
  Scratch scratch(cx.scratch);
  auto* products = scratch.take<float>(s.num_tokens * qkv.rows);
  gemm_slices(cx, scratch, qkv, out.h.as<uint16_t>(), s.num_tokens, products);
  store_qkv(cx, qkv_store(out.q, kv, cos_sin, s, out.gate), norms, products);
}

void norm_qkv_unit_gemm_fp8(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                            const Tensor& d, const QkvNorms& norms, const Weight& qkv,
                            const Tensor& cos_sin, const Step& s) {
  if (s.num_tokens == 0) return;
  Scratch scratch(cx.scratch);
  auto* const products = scratch.take<float>(s.num_tokens * qkv.rows);
  const E4m3Rows h = take_e4m3_rows(scratch, s.num_tokens, qkv.cols);
  norm_of(cx, out, x, d, norms.input, s, h);
  gemm_fp8(cx, qkv, GemmOut::kF32,
           {.x = h.codes, .y = products, .num_slots = s.num_tokens, .x_scale = h.scales});
  store_qkv(cx, qkv_store(out.q, kv, cos_sin, s, out.gate), norms, products);
}

void norm_qkv_unit_split(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                         const Tensor& d, const QkvNorms& norms, const Weight& qkv,
                         const Tensor& cos_sin, const Step& s) {
  if (s.num_tokens == 0) return;
  norm_of(cx, out, x, d, norms.input, s, {});
  auto* products = Scratch(cx.scratch).take<float>(s.num_tokens * qkv.rows);
  multiply_split(cx, qkv, out.h.as<uint16_t>(), s.num_tokens, products);
  store_qkv(cx, qkv_store(out.q, kv, cos_sin, s, out.gate), norms, products);
}

void norm_qkv_gemm_fp8(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                       const Tensor& d, const QkvNorms& norms, const Weight& qkv,
                       const Tensor& cos_sin, const Step& s) {
  if (s.num_tokens == 0) return;
  Scratch scratch(cx.scratch);
  const E4m3Rows h = take_e4m3_rows(scratch, s.num_tokens, qkv.cols);
  norm_of(cx, out, x, d, norms.input, s, h);
  gemm_fp8(cx, qkv, GemmOut::kQkv,
           {.x = h.codes,
            .num_slots = s.num_tokens,
            .x_scale = h.scales,
            .qkv = qkv_store(out.q, kv, cos_sin, s)});
}

}  // namespace nibble::ops::gpu
