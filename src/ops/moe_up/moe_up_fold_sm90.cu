// moe_up for some rows an expert, by wgmma in FP8 that keeps bf16's bits (gemv_fold_sm90.cuh).
#include "cuda/bf16.cuh"
#include "ops/linear/gemv_fold_sm90.cuh"
#include "ops/moe_up/moe_up.h"

namespace nibble::ops::gpu {
namespace {

struct FoldUp {
  uint16_t* u;  // [slots, width]
  const int32_t *token, *offsets;
  int experts, width;
  float limit;

  __device__ int row_of(int slot) const { return __ldcg(token + slot); }
  __device__ void store(int row, int weight_row, float gate, float up) const {
    u[int64_t{row} * width + weight_row / 2] = cuda::bf16_bits(sm90::swiglu(gate, up, limit));
  }
};

}  // namespace

void moe_up_fold(Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing,
                 const Weight& up, float limit) {
  Scratch scratch(cx.scratch);
  sm90::launch_fold(cx, scratch, up, h.as<uint16_t>(), routing.num_tokens,
                    FoldUp{.u = u.as<uint16_t>(),
                           .token = routing.token,
                           .offsets = routing.offsets,
                           .experts = routing.num_experts,
                           .width = static_cast<int>(up.rows / 2),
                           .limit = limit});
}

}  // namespace nibble::ops::gpu
