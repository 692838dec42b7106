// norm_linear for few tokens with BF16 weights: add_norm, then rows by mma
// (ops/gpu_matmul/rows_gemv.cuh); of one token in one launch.
// p [T, N] f32, h [T, H] bf16, y [T, H] f32, out; x, d [T, H] f32; in [N, H] in kRows. Needs
// N % 16 == 0, H % 64 == 0, H <= 4608. Bytes: the weights; 50 MB for the delta-net layers of
// Qwen3-Next-80B: 11 us of an H200's 4.55 TB/s, 216 us of a GB10's 233 GB/s.
#include "ops/gpu_matmul/gemv.cuh"
#include "ops/norm/add_norm.h"
#include "ops/norm_linear/norm_linear.h"

namespace nibble::ops::gpu {
namespace {

struct Store {
  float* p;  // [T, N]
  int64_t width;

  __device__ void store(int token, int row, float a, float b) const {
    *reinterpret_cast<float2*>(p + token * width + row) = {a, b};
  }
};

// One token: the norm in front of the product.
struct LinearOne : Store {
  NormInput norm;
  static constexpr int tokens = 1;
  static constexpr bool kLiesBeside = true;  // moe_down, of the layer before
};

// Behind add_norm: h is ready.
struct LinearFew : Store {
  const uint16_t* h;  // [T, H]
  int tokens, hidden;

  __device__ uint4 load(int row, int k) const {
    return __ldcg(reinterpret_cast<const uint4*>(h + int64_t{row} * hidden + k));
  }
};

}  // namespace

void norm_linear_rows(Ctx& cx, const NormLinearOut& out, const Tensor& x, const Tensor& d,
                      const Norm& norm, const Weight& in) {
  const int64_t tokens = x.dim(0);
  if (tokens == 0) return;
  const Store store{out.p.as<float>(), in.rows};
  auto *y = out.y.as<float>(), *from = x.as<float>(), *delta = d.as<float>();
  auto* h = out.h.as<uint16_t>();
  const auto hidden = static_cast<int>(in.cols);
  if (tokens == 1 && hidden <= kNormColumns)
    return launch_rows<1, Items::kTiles>(
        cx, in,
        LinearOne{store,
                  {.x = from,
                   .d = delta,
                   .y = y,
                   .h = h,
                   .weight = norm.weight,
                   .eps = norm.eps,
                   .offset = norm.offset,
                   .hidden = hidden,
                   .row = nullptr,
                   .is_x_old = cx.stream.order.is_complete(from)}});
  add_norm(
      cx,
      {.y = y, .h = h, .x = from, .d = delta, .norm = norm, .tokens = tokens, .hidden = hidden});
  launch_rows<kFewTokens, Items::kTiles>(cx, in,
                                         LinearFew{store, h, static_cast<int>(tokens), hidden});
}

}  // namespace nibble::ops::gpu
