// The experts of one token of few, for a kernel whose blocks (x, t) work for token t alone: chosen
// in each block from the logits that norm_route has left, or else those that it chose.
#pragma once

#include "ops/gpu_matmul/gemv_chosen.cuh"
#include "ops/norm_route/route.cuh"

namespace nibble::ops::gpu {

struct TokenChoice {
  Routing routing;
  bool is_chosen_before;  // what it reads was complete before the kernel in front
  int top_k;              // routing's

  static __device__ __forceinline__ int token() { return static_cast<int>(blockIdx.y); }
  __device__ __forceinline__ bool is_left() const { return routing.logits != nullptr; }
  // With this token's logits.
  __device__ __forceinline__ Routing here() const {
    Routing r = routing;
    r.logits += token() * r.num_experts;
    return r;
  }
  // By a warp, as all of these. Made before:
  __device__ __forceinline__ OneChoice chosen() const {
    const int lane = threadIdx.x % 32, at = token() * top_k + lane;
    if (lane >= top_k) return {};
    return {{__ldcg(routing.ids + at), __ldcg(routing.p + at)}, __ldcg(routing.slot + at)};
  }
  // Left, of few experts (has_few()): with their scores.
  __device__ __forceinline__ OneChoice choose_few() const {
    const float* const logits = routing.logits + token() * routing.num_experts;
    return placed(
        place_one(gpu::choose<kFewRouted / 32>(logits, routing.num_experts, top_k), top_k));
  }
  // Left, whose slot is counted from the token's first.
  __device__ __forceinline__ OneChoice placed(OneChoice one) const {
    one.slot += token() * top_k;
    return one;
  }
  static __device__ __forceinline__ int slot_of(const Choices& c, int choice) {
    return c.slot[choice];
  }
  __device__ __forceinline__ void fill(Choices& c, const OneChoice& one) const {
    const int lane = threadIdx.x % 32;
    if (lane >= top_k) return;
    c.expert[lane] = one.choice.id;
    c.slot[lane] = one.slot;
    c.weight[lane] = one.choice.p;
  }
};

}  // namespace nibble::ops::gpu
