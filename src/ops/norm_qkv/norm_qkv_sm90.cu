// norm_qkv for many tokens: three launches: norm, the dense wgmma GEMM into float32, then rope and
// append. (Products in float32 cross memory once: 8 (Q + 2G) D bytes a token, 41 KB for gpt-oss.)
#include "ops/linear/gemm_fp8_sm90.h"
#include "ops/norm/add_norm.h"
#include "ops/norm_qkv/norm_qkv.h"
#include "ops/norm_qkv/store_qkv.cuh"
#include "ops/scratch.h"

namespace nibble::ops::gpu {
namespace {

// multiply(products) fills [T, (Q + 2G) D] f32 from out.h or `e4m3`.
template <typename Multiply>
void norm_qkv_by(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                 const Tensor& d, const Norm& norm, const Weight& qkv, const Tensor& cos_sin,
                 const Step& s, Scratch& scratch, const E4m3Rows& e4m3, const Multiply& multiply) {
  if (s.num_tokens == 0) return;
  auto* products = scratch.take<float>(s.num_tokens * qkv.rows);
  add_norm(cx, {.y = out.y.as<float>(),
                .h = out.h.as<uint16_t>(),
                .x = x.as<float>(),
                .d = d.as<float>(),
                .norm = norm,
                .tokens = s.num_tokens,
                .hidden = qkv.cols,
                .e4m3 = e4m3});
  multiply(products);
  store_qkv(cx, qkv_store(out.q, kv, cos_sin, s), products);
}

}  // namespace

void norm_qkv_gemm(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                   const Tensor& d, const Norm& norm, const Weight& qkv, const Tensor& cos_sin,
                   const Step& s) {
  Scratch scratch(cx.scratch);
  norm_qkv_by(cx, out, kv, x, d, norm, qkv, cos_sin, s, scratch, {}, [&](float* products) {
    gemm(cx, qkv, out.h.as<uint16_t>(), s.num_tokens, products);
  });
}

void norm_qkv_gemm_fp8(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                       const Tensor& d, const Norm& norm, const Weight& qkv, const Tensor& cos_sin,
                       const Step& s) {
  if (qkv.fold == nullptr) return norm_qkv_gemm(cx, out, kv, x, d, norm, qkv, cos_sin, s);
  Scratch scratch(cx.scratch);
  const E4m3Rows h = take_e4m3_rows(scratch, s.num_tokens, qkv.cols);
  norm_qkv_by(cx, out, kv, x, d, norm, qkv, cos_sin, s, scratch, h, [&](float* products) {
    gemm_fp8(cx, qkv, GemmOut::kF32,
             {.x = h.codes, .y = products, .num_slots = s.num_tokens, .x_scale = h.scales});
  });
}

}  // namespace nibble::ops::gpu
