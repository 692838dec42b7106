// norm_qkv by SM12x's block-scaled mma: the norm, E4M3 or E2M1 of it, then the GEMM, which turns
// and stores plain heads of 64 dims in MXFP4 and MXFP8. Of others it leaves products in float32,
// which cross memory once, and a fourth launch norms, turns and stores.
#include "ops/gpu_matmul/gemm_scaled_sm12x.h"
#include "ops/norm/add_norm.h"
#include "ops/norm_qkv/norm_qkv.h"
#include "ops/norm_qkv/store_qkv.cuh"

namespace nibble::ops::gpu {
namespace {

bool turns_as_it_stores(const Weight& qkv, const QkvStore& store, const QkvNorms& norms) {
  return (qkv.format == Format::kMxfp4 || qkv.format == Format::kMxfp8) &&
         has_plain_heads(store, norms);
}

template <ActFormat kInputs>
void qkv_of(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x, const Tensor& d,
            const QkvNorms& norms, const Weight& qkv, const Tensor& cos_sin, const Step& s) {
  if (s.num_tokens == 0) return;
  add_norm(cx, {.y = out.y.as<float>(),
                .h = out.h.as<uint16_t>(),
                .x = x.as<float>(),
                .d = d.as<float>(),
                .norm = norms.input,
                .tokens = s.num_tokens,
                .hidden = x.dim(1)});
  Scratch scratch(cx.scratch);
  const QkvStore store = qkv_store(out.q, kv, cos_sin, s, out.gate);
  auto* const products = scratch.take<float>(s.num_tokens * qkv.rows);
  const sm12x::InputRows h =
      sm12x::quantize_rows(cx, scratch, kInputs, qkv, out.h.as<uint16_t>(), s.num_tokens);
  const bool turns = turns_as_it_stores(qkv, store, norms);
  sm12x::gemm_scaled(
      cx, kInputs, qkv, turns ? GemmOut::kQkv : GemmOut::kF32,
      {.x = h.codes, .y = products, .num_slots = s.num_tokens, .x_scale = h.scales, .qkv = store});
  if (!turns) store_qkv(cx, store, norms, products);
}

}  // namespace

void norm_qkv_block_scaled(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                           const Tensor& d, const QkvNorms& norms, const Weight& qkv,
                           const Tensor& cos_sin, const Step& s) {
  qkv_of<ActFormat::kFp8>(cx, out, kv, x, d, norms, qkv, cos_sin, s);
}

void norm_qkv_w4a4(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                   const Tensor& d, const QkvNorms& norms, const Weight& qkv, const Tensor& cos_sin,
                   const Step& s) {
  qkv_of<ActFormat::kFp4>(cx, out, kv, x, d, norms, qkv, cos_sin, s);
}

}  // namespace nibble::ops::gpu
