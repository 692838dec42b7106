// norm_qkv for few tokens: add_norm (BF16 rows: of up to 4 in the same kernel), then MXFP4 weights
// in kTiles16x64 by int8 digits or BF16 rows by mma (ops/gpu_matmul/tiles.cuh, rows_gemv.cuh),
// turned and stored by store_qkv.cuh. q [T, Q * 64], h [T, H] bf16, y [T, H] f32, out; x, d [T, H]
// f32; qkv [(Q + 2G) * 64, H] with bias. Needs H % 64 == 0, H <= 4608, head dim 64. Bytes: the
// weights; gpt-oss-120b: 7.8 MB in MXFP4, 29.5 in BF16: 1.7 and 6.5 us of an H200's 4.55 TB/s, 34
// and 127 us of a GB10's 233 GB/s.
#include "ops/gpu_matmul/gemv.cuh"
#include "ops/norm/add_norm.h"
#include "ops/norm_qkv/norm_qkv.h"
#include "ops/norm_qkv/store_qkv.cuh"

namespace nibble::ops::gpu {
namespace {

// What becomes of the products.
struct Store {
  QkvStore out;

  __device__ int64_t place_of(int token) const { return kv_row(out, token); }
  __device__ void touch(int thread) const {
    if (thread < out.dim / 8) gpu::touch(out.cos_sin + thread * 8);
  }
  __device__ void store(int token, int row, float a, float b, int64_t place) const {
    store_pair(out, place, token, row / 64, row % 64, a, b);
  }
};

// One token: the norm in front of the product.
struct QkvOne : Store {
  NormInput norm;
  static constexpr int tokens = 1;
};

// The same of up to 4.
struct QkvNormed : Store {
  NormInput norm;
  int tokens;
};

// Behind add_norm: h is ready.
struct QkvFew : Store {
  const uint16_t* h;  // [T, H]
  int tokens, hidden;

  __device__ uint4 load(int row, int k) const {
    return __ldcg(reinterpret_cast<const uint4*>(h + int64_t{row} * hidden + k));
  }
};

// run(op) with one of them: the first for up to kNormed tokens whose row `fits` and is not too long
// for it.
template <int kNormed, typename Run>
void with_norm(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x, const Tensor& d,
               const Norm& norm, const Weight& qkv, const Tensor& cos_sin, const Step& s, bool fits,
               const Run& run) {
  const Store store{qkv_store(out.q, kv, cos_sin, s)};
  auto *y = out.y.as<float>(), *from = x.as<float>(), *delta = d.as<float>();
  auto* h = out.h.as<uint16_t>();
  if (s.num_tokens <= kNormed && fits && qkv.cols <= kNormColumns) {
    const NormInput input{.x = from,
                          .d = delta,
                          .y = y,
                          .h = h,
                          .weight = norm.weight,
                          .eps = norm.eps,
                          .offset = norm.offset,
                          .hidden = static_cast<int>(qkv.cols),
                          .row = nullptr,
                          .is_x_old = cx.stream.order.is_complete(from)};
    if (s.num_tokens == 1) return run(QkvOne{store, input});
    if constexpr (kNormed > 1) return run(QkvNormed{store, input, s.num_tokens});
  }
  add_norm(cx, {.y = y,
                .h = h,
                .x = from,
                .d = delta,
                .norm = norm,
                .tokens = s.num_tokens,
                .hidden = qkv.cols});
  run(QkvFew{store, h, s.num_tokens, static_cast<int>(qkv.cols)});
}

}  // namespace

void norm_qkv_tiles(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                    const Tensor& d, const QkvNorms& norms, const Weight& qkv,
                    const Tensor& cos_sin, const Step& s) {
  with_norm<1>(cx, out, kv, x, d, norms.input, qkv, cos_sin, s, fits_one(qkv), [&](const auto& op) {
    if constexpr (HasNorm<decltype(op)>)
      launch_one<Items::kHeadHalves, true>(cx, qkv, op);
    else
      launch_few<Items::kHeadHalves>(cx, qkv, op);
  });
}

void norm_qkv_rows(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                   const Tensor& d, const QkvNorms& norms, const Weight& qkv, const Tensor& cos_sin,
                   const Step& s) {
  with_norm<4>(cx, out, kv, x, d, norms.input, qkv, cos_sin, s, true, [&](const auto& op) {
    using Op = std::remove_cvref_t<decltype(op)>;
    if constexpr (std::is_same_v<Op, QkvOne>)
      launch_rows<1, Items::kHeadHalves>(cx, qkv, op);
    else if constexpr (HasNorm<Op>)
      launch_rows<4, Items::kHeadHalves>(cx, qkv, op);
    else if (s.num_tokens <= 4)
      launch_rows<4, Items::kHeadHalves>(cx, qkv, op);
    else
      launch_rows<kFewTokens, Items::kHeadHalves>(cx, qkv, op);
  });
}

}  // namespace nibble::ops::gpu
