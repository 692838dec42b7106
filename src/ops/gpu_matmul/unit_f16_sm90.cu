// Launches of unit_f16_sm90.cuh.
#include "ops/gpu_matmul/unit_f16_products.h"
#include "ops/gpu_matmul/unit_f16_sm90.cuh"
#include "ops/moe_up/swiglu.cuh"

namespace nibble::ops::gpu {
namespace {

struct StoreRows {
  float* y;  // [T, rows]
  int rows;

  __device__ void store(int token, int row, float2 v) const {
    *reinterpret_cast<float2*>(y + int64_t{token} * rows + row) = v;
  }
};

struct StoreSwiglu {
  uint16_t* u;  // [T, rows / 2]
  int rows;
  Swiglu act;

  __device__ void store(int token, int row, float2 v) const {
    u[int64_t{token} * (rows / 2) + row / 2] = cuda::bf16_bits(swiglu(v.x, v.y, act));
  }
};

}  // namespace

void multiply_f16(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x, int64_t tokens,
                  float* y) {
  // The second half of an MLP: the first leaves room for one block.
  const bool is_long = plan_unit_f16(w.rows, w.cols, cx.kernels.gpu)->slices > 1;
  sm90::launch_unit_f16(cx, scratch, w, x, tokens, !is_long,
                        StoreRows{y, static_cast<int>(w.rows)});
}

void norm_multiply_f16(Ctx& cx, Scratch& scratch, const AddNorm& norm, const Weight& w, float* y) {
  if (norm.tokens == 0) return;
  add_norm(cx, norm);
  sm90::launch_unit_f16(cx, scratch, w, norm.h, norm.tokens, true,
                        StoreRows{y, static_cast<int>(w.rows)});
}

void norm_swiglu_f16(Ctx& cx, Scratch& scratch, const AddNorm& norm, const Weight& w,
                     const Swiglu& act, uint16_t* u) {
  if (norm.tokens == 0) return;
  add_norm(cx, norm);
  sm90::launch_unit_f16(cx, scratch, w, norm.h, norm.tokens, true,
                        StoreSwiglu{u, static_cast<int>(w.rows), act});
}

}  // namespace nibble::ops::gpu
