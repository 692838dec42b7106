// The general product with float32 results: dense layers, and experts by slot.
#include "ops/gpu_matmul/product_any.cuh"
#include "ops/gpu_matmul/product_any.h"

namespace nibble::ops::gpu {
namespace {

struct StoreRows {
  float* y;      // [slots, rows]
  int64_t rows;  // may be odd: no pairs

  __device__ __forceinline__ void store(int slot, int row, float a, float b,
                                        bool has_second) const {
    float* const to = y + slot * rows + row;
    to[0] = a;
    if (has_second) to[1] = b;
  }
};

}  // namespace

void multiply_any(Ctx& cx, const Weight& w, const uint16_t* x, int64_t tokens, float* y) {
  any::multiply(cx, w, x, tokens, nullptr, /*by_token=*/false, StoreRows{y, w.rows});
}

void multiply_any(Ctx& cx, const Weight& w, const uint16_t* x, const Routing& routing, float* y) {
  any::multiply(cx, w, x, int64_t{routing.num_tokens} * routing.top_k, &routing,
                /*by_token=*/false, StoreRows{y, w.rows});
}

}  // namespace nibble::ops::gpu
