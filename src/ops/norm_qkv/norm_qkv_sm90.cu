// norm_qkv for many tokens: three launches: norm, the dense wgmma GEMM into float32, then rope and
// append. (Products in float32 cross memory once: 8 (Q + 2G) D bytes a token, 41 KB for gpt-oss.)
#include "ops/linear/gemm_fp8_sm90.h"
#include "ops/norm/add_norm.h"
#include "ops/norm_qkv/norm_qkv.h"
#include "ops/norm_qkv/store_qkv.cuh"
#include "ops/scratch.h"

namespace nibble::ops::gpu {
namespace {

// multiply(scratch, products) fills [T, (Q + 2G) D] f32 from out.h.
template <typename Multiply>
void norm_qkv_by(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                 const Tensor& d, const Norm& norm, const Weight& qkv, const Tensor& cos_sin,
                 const Step& s, const Multiply& multiply) {
  if (s.num_tokens == 0) return;
  Scratch scratch(cx.scratch);
  auto* products = scratch.take<float>(s.num_tokens * qkv.rows);
  add_norm(cx, {.y = out.y.as<float>(),
                .h = out.h.as<uint16_t>(),
                .x = x.as<float>(),
                .d = d.as<float>(),
                .norm = norm,
                .tokens = s.num_tokens,
                .hidden = qkv.cols});
  multiply(scratch, products);
  store_qkv(cx, qkv_store(out.q, kv, cos_sin, s), products);
}

}  // namespace

void norm_qkv_gemm(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                   const Tensor& d, const Norm& norm, const Weight& qkv, const Tensor& cos_sin,
                   const Step& s) {
  norm_qkv_by(cx, out, kv, x, d, norm, qkv, cos_sin, s, [&](Scratch&, float* products) {
    gemm(cx, qkv, out.h.as<uint16_t>(), s.num_tokens, products);
  });
}

void norm_qkv_gemm_fp8(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                       const Tensor& d, const Norm& norm, const Weight& qkv, const Tensor& cos_sin,
                       const Step& s) {
  norm_qkv_by(cx, out, kv, x, d, norm, qkv, cos_sin, s, [&](Scratch& scratch, float* products) {
    gemm_fp8(cx, scratch, qkv, out.h.as<uint16_t>(), s.num_tokens, products);
  });
}

}  // namespace nibble::ops::gpu
