// Launches of rows_gemv.cuh that leave float32.
#include "ops/gpu_matmul/gemv.cuh"
#include "ops/gpu_matmul/rows_products.h"

namespace nibble::ops::gpu {
namespace {

struct Store {
  float* y;  // [T, rows]
  int64_t rows;

  __device__ void store(int token, int row, float a, float b) const {
    *reinterpret_cast<float2*>(y + token * rows + row) = {a, b};
  }
};

struct OfRows : Store {
  const uint16_t* x;  // [T, cols]
  int tokens, cols;

  __device__ uint4 load(int row, int k) const {
    return __ldcg(reinterpret_cast<const uint4*>(x + int64_t{row} * cols + k));
  }
};

// One token, the norm in front of the product.
struct NormedOne : Store {
  NormInput norm;
  static constexpr int tokens = 1;
  static constexpr int kSlots = 6;  // beside moe_down, of the layer before
};

}  // namespace

void multiply_rows(Ctx& cx, const Weight& w, const uint16_t* x, int64_t tokens, float* y) {
  if (tokens == 0) return;
  const OfRows op{{y, w.rows}, x, static_cast<int>(tokens), static_cast<int>(w.cols)};
  if (tokens == 1)
    launch_rows<1, Items::kTiles>(cx, w, op);
  else if (tokens <= 4)
    launch_rows<4, Items::kTiles>(cx, w, op);
  else
    launch_rows<kFewTokens, Items::kTiles>(cx, w, op);
}

void norm_multiply_rows(Ctx& cx, const AddNorm& n, const Weight& w, float* y) {
  if (n.tokens == 1 && n.hidden <= kNormColumns)
    return launch_rows<1, Items::kTiles>(cx, w,
                                         NormedOne{{y, w.rows},
                                                   {.x = n.x,
                                                    .d = n.d,
                                                    .y = n.y,
                                                    .h = n.h,
                                                    .weight = n.norm.weight,
                                                    .eps = n.norm.eps,
                                                    .offset = n.norm.offset,
                                                    .hidden = static_cast<int>(n.hidden),
                                                    .row = nullptr,
                                                    .is_x_old = cx.stream.order.is_complete(n.x)}});
  add_norm(cx, n);
  multiply_rows(cx, w, n.h, n.tokens, y);
}

}  // namespace nibble::ops::gpu
