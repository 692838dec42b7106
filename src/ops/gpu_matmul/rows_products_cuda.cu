// Launches of rows_gemv.cuh that leave float32.
#include "ops/gpu_matmul/gemv.cuh"
#include "ops/gpu_matmul/rows_products.h"

namespace nibble::ops::gpu {
namespace {

struct StoreRows {
  float* y;           // [T, rows]
  const uint16_t* x;  // [T, cols]
  int tokens, rows, cols;

  __device__ uint4 load(int row, int k) const {
    return __ldcg(reinterpret_cast<const uint4*>(x + int64_t{row} * cols + k));
  }
  __device__ void store(int token, int row, float a, float b) const {
    *reinterpret_cast<float2*>(y + int64_t{token} * rows + row) = {a, b};
  }
};

}  // namespace

void multiply_rows(Ctx& cx, const Weight& w, const uint16_t* x, int64_t tokens, float* y) {
  if (tokens == 0) return;
  const StoreRows op{y, x, static_cast<int>(tokens), static_cast<int>(w.rows),
                     static_cast<int>(w.cols)};
  if (tokens == 1)
    launch_rows<1, Items::kTiles>(cx, w, op);
  else
    launch_rows<kFewTokens, Items::kTiles>(cx, w, op);
}

}  // namespace nibble::ops::gpu
