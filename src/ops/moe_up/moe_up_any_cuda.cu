// moe_up of any shape and format (cuda_any): the product of ops/gpu_matmul/product_any.cuh with
// SwiGLU as its epilogue.
// u [T * K, F] bf16 by slot, out; h [T, H] bf16; up [E, 2F, H] in kRows.
#include "ops/gpu_matmul/product_any.cuh"
#include "ops/moe_up/swiglu.cuh"

namespace nibble::ops::gpu {
namespace {

struct StoreUp {
  uint16_t* u;  // [slots, width]
  int64_t width;
  float limit;

  __device__ __forceinline__ void store(int slot, int row, float gate, float up, bool) const {
    u[slot * width + row / 2] = cuda::bf16_bits(swiglu(gate, up, limit));
  }
};

}  // namespace

void moe_up_any(Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing, const Weight& up,
                float limit) {
  CHECK(routing.logits == nullptr);
  any::multiply(cx, up, h.as<uint16_t>(), int64_t{routing.num_tokens} * routing.top_k, &routing,
                /*by_token=*/true, StoreUp{u.as<uint16_t>(), up.rows / 2, limit});
}

}  // namespace nibble::ops::gpu
