// moe_down of more than one token: products by slot, which combine() weighs.
#pragma once

#include "cuda/memory.h"
#include "ops/moe_down/combine.h"
#include "ops/scratch.h"
#include "ops/weight.h"

namespace nibble::ops::gpu {

struct DownBySlot {
  static constexpr bool kChosenBefore = true;  // before moe_up began
  float* y;                                    // [slots, H]
  const uint16_t* u;                           // [slots, width]
  const int32_t* offsets;
  int experts, width, hidden;

  __device__ uint4 load(int row, int k) const {
    return __ldcg(reinterpret_cast<const uint4*>(u + int64_t{row} * width + k));
  }
  __device__ int row_of(int slot) const { return slot; }
  __device__ void store(int slot, int row, float a, float b) const {
    *reinterpret_cast<float2*>(y + int64_t{slot} * hidden + row) = {a, b};
  }
};

// The products read the offsets before their wait, behind a kernel that waited for them: moe_up's,
// or this where a profile leaves moe_up out. `y` is to be written.
inline void follow_moe_up(const Ctx& cx, void* y) {
  if (cx.left_out.starts_with("moe_up")) cuda::zero_async(y, 4, cx.stream);
}

// multiply(op, scratch) launches the products.
template <typename Multiply>
void down_by_slot(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                  const Weight& down, const Multiply& multiply) {
  const int width = static_cast<int>(down.cols), hidden = static_cast<int>(down.rows);
  Scratch scratch(cx.scratch);
  float* const y = scratch.take<float>(int64_t{routing.num_tokens} * routing.top_k * hidden);
  follow_moe_up(cx, y);
  multiply(DownBySlot{.y = y,
                      .u = u.as<uint16_t>(),
                      .offsets = routing.offsets,
                      .experts = routing.num_experts,
                      .width = width,
                      .hidden = hidden},
           scratch);
  combine(cx, d, y, routing);
}

}  // namespace nibble::ops::gpu
