// Launches of gemm_rows_sm90.cuh.
#include "cuda/bf16.cuh"
#include "ops/gpu_matmul/gemm_ring_sm90.cuh"
#include "ops/gpu_matmul/gemm_rows_sm90.cuh"
#include "ops/gpu_matmul/rows_products.h"

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
    u[int64_t{token} * (rows / 2) + row / 2] = cuda::bf16_bits(sm90::swiglu(v.x, v.y, act));
  }
};

}  // namespace

void multiply_rows_sm90(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x,
                        int64_t tokens, float* y) {
  sm90::launch_rows_product(cx, scratch, w, x, static_cast<int>(tokens),
                            StoreRows{y, static_cast<int>(w.rows)});
}

void swiglu_rows_sm90(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x, int64_t tokens,
                      const Swiglu& act, uint16_t* u) {
  sm90::launch_rows_product(cx, scratch, w, x, static_cast<int>(tokens),
                            StoreSwiglu{u, static_cast<int>(w.rows), act});
}

}  // namespace nibble::ops::gpu
