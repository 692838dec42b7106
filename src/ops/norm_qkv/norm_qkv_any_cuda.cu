// norm_qkv by products that leave float32: the norm, the product into scratch, then store_qkv. Of
// any shape and format (cuda_any: ops/gpu_matmul/product_any.cuh), with NVFP4 weights, and of few
// tokens with BF16 rows.
// q [T, Q * D], h [T, H] bf16, y [T, H] f32, out; x, d [T, H] f32; qkv [(Q + 2G) * D, H] in kRows,
// or in kTiles16x64; D even.
#include "ops/gpu_matmul/product_any.h"
#include "ops/gpu_matmul/rows_products.h"
#include "ops/gpu_matmul/unit_products.h"
#include "ops/norm/add_norm.h"
#include "ops/norm_qkv/norm_qkv.h"
#include "ops/norm_qkv/store_qkv.cuh"
#include "ops/scratch.h"

namespace nibble::ops::gpu {

void norm_qkv_any(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                  const Tensor& d, const QkvNorms& norms, const Weight& qkv, const Tensor& cos_sin,
                  const Step& s) {
  if (s.num_tokens == 0) return;
  float* const products = Scratch(cx.scratch).take<float>(s.num_tokens * qkv.rows);
  add_norm_any(cx, {.y = out.y.as<float>(),
                    .h = out.h.as<uint16_t>(),
                    .x = x.as<float>(),
                    .d = d.as<float>(),
                    .norm = norms.input,
                    .tokens = s.num_tokens,
                    .hidden = qkv.cols});
  multiply_any(cx, qkv, out.h.as<uint16_t>(), s.num_tokens, products);
  store_qkv(cx, qkv_store(out.q, kv, cos_sin, s, out.gate), norms, products);
}

namespace {

using NormMultiplyFn = void(Ctx& cx, const AddNorm& norm, const Weight& w, float* y);

void norm_qkv_by(NormMultiplyFn* multiply, Ctx& cx, const NormQkvOut& out, const KvLayer& kv,
                 const Tensor& x, const Tensor& d, const QkvNorms& norms, const Weight& qkv,
                 const Tensor& cos_sin, const Step& s) {
  if (s.num_tokens == 0) return;
  Scratch scratch(cx.scratch);
  float* const products = products_of(cx, scratch, s, qkv.rows);
  multiply(cx,
           {.y = out.y.as<float>(),
            .h = out.h.as<uint16_t>(),
            .x = x.as<float>(),
            .d = d.as<float>(),
            .norm = norms.input,
            .tokens = s.num_tokens,
            .hidden = qkv.cols},
           qkv, products);
  store_qkv(cx, qkv_store(out.q, kv, cos_sin, s, out.gate), norms, products);
}

}  // namespace

void norm_qkv_few(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                  const Tensor& d, const QkvNorms& norms, const Weight& qkv, const Tensor& cos_sin,
                  const Step& s) {
  norm_qkv_by(norm_multiply_few, cx, out, kv, x, d, norms, qkv, cos_sin, s);
}

void norm_qkv_one(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                  const Tensor& d, const QkvNorms& norms, const Weight& qkv, const Tensor& cos_sin,
                  const Step& s) {
  norm_qkv_by(norm_multiply_one, cx, out, kv, x, d, norms, qkv, cos_sin, s);
}

void norm_qkv_bf16_few(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                       const Tensor& d, const QkvNorms& norms, const Weight& qkv,
                       const Tensor& cos_sin, const Step& s) {
  norm_qkv_by(norm_multiply_rows, cx, out, kv, x, d, norms, qkv, cos_sin, s);
}

}  // namespace nibble::ops::gpu
