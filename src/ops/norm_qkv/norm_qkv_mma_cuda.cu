// norm_qkv for many tokens by mma.sync: the norm, then the GEMM, which turns and stores plain heads
// of 64 dims. With others, and with NVFP4, FP8 and INT4, whose models have others, it leaves
// products in float32, which cross memory once, and a third launch norms, turns and stores.
#include "ops/gpu_matmul/gemm_mma.h"
#include "ops/norm/add_norm.h"
#include "ops/norm_qkv/norm_qkv.h"
#include "ops/norm_qkv/store_qkv.cuh"
#include "ops/scratch.h"

namespace nibble::ops::gpu {
namespace {

void norm_rows(Ctx& cx, const NormQkvOut& out, const Tensor& x, const Tensor& d, const Norm& norm,
               const Step& s) {
  add_norm(cx, {.y = out.y.as<float>(),
                .h = out.h.as<uint16_t>(),
                .x = x.as<float>(),
                .d = d.as<float>(),
                .norm = norm,
                .tokens = s.num_tokens,
                .hidden = x.dim(1)});
}

}  // namespace

void norm_qkv_mma(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                  const Tensor& d, const QkvNorms& norms, const Weight& qkv, const Tensor& cos_sin,
                  const Step& s) {
  const QkvStore store = qkv_store(out.q, kv, cos_sin, s, out.gate);
  if (!has_plain_heads(store, norms))
    return norm_qkv_unit_mma(cx, out, kv, x, d, norms, qkv, cos_sin, s);
  if (s.num_tokens == 0) return;
  norm_rows(cx, out, x, d, norms.input, s);
  mma::gemm(cx, qkv, GemmOut::kQkv, {.x = out.h.data, .num_slots = s.num_tokens, .qkv = store});
}

void norm_qkv_unit_mma(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                       const Tensor& d, const QkvNorms& norms, const Weight& qkv,
                       const Tensor& cos_sin, const Step& s) {
  if (s.num_tokens == 0) return;
  norm_rows(cx, out, x, d, norms.input, s);
  auto* products = Scratch(cx.scratch).take<float>(s.num_tokens * qkv.rows);
  mma::gemm(cx, qkv, GemmOut::kF32, {.x = out.h.data, .y = products, .num_slots = s.num_tokens});
  store_qkv(cx, qkv_store(out.q, kv, cos_sin, s, out.gate), norms, products);
}

}  // namespace nibble::ops::gpu
