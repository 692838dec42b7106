// norm_qkv for few tokens: add_norm, then MXFP4 weights in kTiles16x64 by int8 digits or BF16 rows
// by mma (ops/linear/tiles_gemv.cuh, rows_gemv.cuh), turned and stored by store_qkv.cuh. q [T, Q *
// 64], h [T, H] bf16, y [T, H] f32, out; x, d [T, H] f32; qkv [(Q + 2G) * 64, H] with bias. Needs H
// % 64 == 0, H <= 4608, head dim 64. Bytes: the weights; gpt-oss-120b: 7.8 MB in MXFP4, 29.5 in
// BF16: 1.7 and 6.5 us of an H200's 4.55 TB/s, 34 and 127 us of a GB10's 233 GB/s.
#include "ops/linear/gemv.cuh"
#include "ops/norm/add_norm.h"
#include "ops/norm_qkv/norm_qkv.h"
#include "ops/norm_qkv/store_qkv.cuh"

namespace nibble::ops::gpu {
namespace {

// Behind add_norm: h is ready.
struct Qkv {
  QkvStore out;
  const uint16_t* h;  // [T, H]
  int tokens, hidden;

  __device__ uint4 load(int row, int k) const {
    return __ldcg(reinterpret_cast<const uint4*>(h + int64_t{row} * hidden + k));
  }
  __device__ void store(int token, int row, float a, float b) const {
    store_pair(out, kv_row(out, token), token, row / out.dim, row % out.dim, a, b);
  }
};

Qkv normed(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x, const Tensor& d,
           const Norm& norm, const Weight& qkv, const Tensor& cos_sin, const Step& s) {
  add_norm(cx, {.y = out.y.as<float>(),
                .h = out.h.as<uint16_t>(),
                .x = x.as<float>(),
                .d = d.as<float>(),
                .norm = norm,
                .tokens = s.num_tokens,
                .hidden = qkv.cols});
  return {.out = qkv_store(out.q, kv, cos_sin, s),
          .h = out.h.as<uint16_t>(),
          .tokens = s.num_tokens,
          .hidden = static_cast<int>(qkv.cols)};
}

}  // namespace

void norm_qkv_tiles(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                    const Tensor& d, const Norm& norm, const Weight& qkv, const Tensor& cos_sin,
                    const Step& s) {
  const Qkv op = normed(cx, out, kv, x, d, norm, qkv, cos_sin, s);
  if (s.num_tokens == 1)
    launch_one<Items::kHeadHalves>(cx, qkv, op, 1, 1);
  else
    launch_few<Items::kHeadHalves>(cx, qkv, op, qkv.rows / 16,
                                   (s.num_tokens + kFewTokens - 1) / kFewTokens);
}

void norm_qkv_rows(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                   const Tensor& d, const Norm& norm, const Weight& qkv, const Tensor& cos_sin,
                   const Step& s) {
  launch_rows<Items::kHeadHalves>(cx, qkv, normed(cx, out, kv, x, d, norm, qkv, cos_sin, s));
}

}  // namespace nibble::ops::gpu
