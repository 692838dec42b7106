// moe_down of more than one token: products by slot, which combine() weighs.
#pragma once

#include "ops/moe_down/combine.h"
#include "ops/scratch.h"
#include "ops/weight.h"

namespace nibble::ops::gpu {

struct DownBySlot {
  bool is_chosen_before;
  float* y;           // [slots, H]
  const uint16_t* u;  // [slots, width]
  const int32_t* offsets;
  int experts, width, hidden, slots;

  __device__ uint4 load(int row, int k) const {
    return __ldcg(reinterpret_cast<const uint4*>(u + int64_t{row} * width + k));
  }
  __device__ int row_of(int slot) const { return slot; }
  __device__ void store(int slot, int row, float a, float b) const {
    *reinterpret_cast<float2*>(y + int64_t{slot} * hidden + row) = {a, b};
  }
};

// multiply(op, scratch) launches the products.
template <typename Multiply>
void down_by_slot(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                  const Weight& down, const Multiply& multiply) {
  const int width = static_cast<int>(down.cols), hidden = static_cast<int>(down.rows);
  Scratch scratch(cx.scratch);
  float* const y = scratch.take<float>(int64_t{routing.num_tokens} * routing.top_k * hidden);
  multiply(DownBySlot{.is_chosen_before = cx.stream.order.is_complete(routing.ids),
                      .y = y,
                      .u = u.as<uint16_t>(),
                      .offsets = routing.offsets,
                      .experts = routing.num_experts,
                      .width = width,
                      .hidden = hidden,
                      .slots = routing.num_tokens * routing.top_k},
           scratch);
  combine(cx, d, y, routing);
}

}  // namespace nibble::ops::gpu
