// moe_down for some rows an expert, by wgmma in FP8 that keeps bf16's bits (gemv_fold_sm90.cuh).
#include "ops/linear/gemv_fold_sm90.cuh"
#include "ops/moe_down/combine.h"
#include "ops/moe_down/moe_down.h"
#include "ops/scratch.h"

namespace nibble::ops::gpu {
namespace {

struct FoldDown {
  static constexpr bool kChosenBefore = true;  // before moe_up began
  float* y;                                    // [slots, H]
  const uint16_t* u;                           // [slots, width]
  const int32_t* offsets;
  int experts, width, hidden;

  __device__ uint4 load(int row, int k) const {
    return __ldcg(reinterpret_cast<const uint4*>(u + int64_t{row} * width + k));
  }
  __device__ void store(int slot, int row, float a, float b) const {
    *reinterpret_cast<float2*>(y + int64_t{slot} * hidden + row) = {a, b};
  }
};

}  // namespace

void moe_down_fold(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                   const Weight& down) {
  const int width = static_cast<int>(down.cols), hidden = static_cast<int>(down.rows);
  Scratch scratch(cx.scratch);
  float* const y = scratch.take<float>(int64_t{routing.num_tokens} * routing.top_k * hidden);
  sm90::launch_fold(cx, down,
                    FoldDown{.y = y,
                             .u = u.as<uint16_t>(),
                             .offsets = routing.offsets,
                             .experts = routing.num_experts,
                             .width = width,
                             .hidden = hidden});
  combine(cx, d, y, routing);
}

}  // namespace nibble::ops::gpu
