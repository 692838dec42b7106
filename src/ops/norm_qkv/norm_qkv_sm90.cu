// norm_qkv for many tokens. bf16: three launches: norm, the dense wgmma GEMM into float32, then
// rope and append. (Products in float32 cross memory once: 8 (Q + 2G) D bytes a token, 41 KB for
// gpt-oss.) E4M3: norm, then the GEMM, which turns and stores (gemm_turn_sm90.cuh; the GEMM in bf16
// with that end lost 18% of moe_up to registers).
#include "ops/linear/gemm_fp8_sm90.h"
#include "ops/norm/add_norm.h"
#include "ops/norm_qkv/norm_qkv.h"
#include "ops/norm_qkv/store_qkv.cuh"
#include "ops/scratch.h"

namespace nibble::ops::gpu {
namespace {

void norm_of(Ctx& cx, const NormQkvOut& out, const Tensor& x, const Tensor& d, const Norm& norm,
             const Step& s, const E4m3Rows& e4m3) {
  add_norm(cx, {.y = out.y.as<float>(),
                .h = out.h.as<uint16_t>(),
                .x = x.as<float>(),
                .d = d.as<float>(),
                .norm = norm,
                .tokens = s.num_tokens,
                .hidden = x.dim(1),
                .e4m3 = e4m3});
}

}  // namespace

void norm_qkv_gemm(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                   const Tensor& d, const Norm& norm, const Weight& qkv, const Tensor& cos_sin,
                   const Step& s) {
  if (s.num_tokens == 0) return;
  Scratch scratch(cx.scratch);
  auto* products = scratch.take<float>(s.num_tokens * qkv.rows);
  norm_of(cx, out, x, d, norm, s, {});
  gemm(cx, qkv, out.h.as<uint16_t>(), s.num_tokens, products);
  store_qkv(cx, qkv_store(out.q, kv, cos_sin, s), products);
}

void norm_qkv_gemm_fp8(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                       const Tensor& d, const Norm& norm, const Weight& qkv, const Tensor& cos_sin,
                       const Step& s) {
  if (qkv.fold == nullptr) return norm_qkv_gemm(cx, out, kv, x, d, norm, qkv, cos_sin, s);
  if (s.num_tokens == 0) return;
  Scratch scratch(cx.scratch);
  const E4m3Rows h = take_e4m3_rows(scratch, s.num_tokens, qkv.cols);
  norm_of(cx, out, x, d, norm, s, h);
  gemm_fp8(cx, qkv, GemmOut::kQkv,
           {.x = h.codes,
            .num_slots = s.num_tokens,
            .x_scale = h.scales,
            .qkv = qkv_store(out.q, kv, cos_sin, s)});
}

}  // namespace nibble::ops::gpu
