// moe_up for some rows an expert, by wgmma in FP8 that keeps bf16's bits (gemv_fold_sm90.cuh).
#include "cuda/bf16.cuh"
#include "ops/linear/gemv_fold_sm90.cuh"
#include "ops/moe_up/moe_up.h"

namespace nibble::ops::gpu {
namespace {

struct FoldUp {
  static constexpr bool kChosenBefore = false;
  uint16_t* u;        // [slots, width]
  const uint16_t* h;  // [T, hidden]
  const int32_t *token, *offsets;
  int experts, width, hidden;
  float limit;

  __device__ uint4 load(int row, int k) const {
    return __ldcg(reinterpret_cast<const uint4*>(h + int64_t{__ldcg(token + row)} * hidden + k));
  }
  __device__ void store(int row, int weight_row, float gate, float up) const {
    u[int64_t{row} * width + weight_row / 2] = cuda::bf16_bits(sm90::swiglu(gate, up, limit));
  }
};

}  // namespace

void moe_up_fold(Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing,
                 const Weight& up, float limit) {
  sm90::launch_fold(cx, up,
                    FoldUp{.u = u.as<uint16_t>(),
                           .h = h.as<uint16_t>(),
                           .token = routing.token,
                           .offsets = routing.offsets,
                           .experts = routing.num_experts,
                           .width = static_cast<int>(up.rows / 2),
                           .hidden = static_cast<int>(up.cols),
                           .limit = limit});
}

}  // namespace nibble::ops::gpu
