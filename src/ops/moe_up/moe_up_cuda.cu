// moe_up for few tokens: MXFP4 weights in kTiles16x64 by int8 digits (ops/gpu_matmul/tiles.cuh).
// u [T * K, F] bf16 by slot, out; h [T, H] bf16; up [E, 2F, H] with bias.
// One token, or each of a few: gemv_chosen; more: grouped_gemm. NVFP4 weights: unit_one for each of
// a few tokens, unit_gemv.
// Needs 2F % 16 == 0, H % 64 == 0, H <= 4608, K <= 8, E <= 256 (512 threads count the slots).
// Bytes: the weights of the distinct experts; gpt-oss-120b, one token: 35.3 MB, 7.8 us of an H200's
// 4.55 TB/s, 151 us of a GB10's 233 GB/s. TB/s by tokens: ops/gpu_matmul/grouped_gemm.cuh.
#include "cuda/bf16.cuh"
#include "ops/gpu_matmul/gemv_chosen.cuh"
#include "ops/gpu_matmul/unit_gemv.cuh"
#include "ops/gpu_matmul/unit_one.cuh"
#include "ops/moe_up/moe_up.h"
#include "ops/moe_up/swiglu.cuh"
#include "ops/norm_route/route.cuh"
#include "ops/norm_route/token_choice.cuh"

namespace nibble::ops::gpu {
namespace {

struct Up {
  bool is_chosen_before;
  uint16_t* u;        // [slots, width]
  const uint16_t* h;  // [T, hidden]
  const int32_t *token, *offsets;
  int tokens, top_k, experts, width, hidden;
  Swiglu act;
  Routing routing;

  // One token's choices, by a warp: which, and of those left to this kernel what others read.
  __device__ OneChoice choose() const {
    if (routing.logits != nullptr)
      return place_one(gpu::choose<kFewRouted / 32>(routing.logits, experts, top_k), top_k);
    return chosen();
  }
  __device__ OneChoice chosen() const {
    const int lane = threadIdx.x % 32;
    if (lane >= top_k) return {};
    return {{__ldcg(routing.ids + lane), 0}, __ldcg(routing.slot + lane)};
  }
  __device__ void fill(Choices& c, const OneChoice& one) const {
    if (threadIdx.x % 32 < top_k) c.expert[one.slot] = one.choice.id;
  }
  static __device__ int slot_of(const Choices&, int choice) { return choice; }
  __device__ void publish(const OneChoice& one) const {
    if (routing.logits != nullptr) store_one(routing, {weigh(one.choice, routing.top_k), one.slot});
  }
  __device__ uint4 load_one(int, int k) const {
    return __ldcg(reinterpret_cast<const uint4*>(h + k));
  }
  __device__ uint4 load(int row, int k) const {
    const int t = tokens == 1 ? 0 : __ldcg(token + row);
    return __ldcg(reinterpret_cast<const uint4*>(h + int64_t{t} * hidden + k));
  }
  __device__ void store(int row, int weight_row, float gate, float up) const {
    u[int64_t{row} * width + weight_row / 2] = cuda::bf16_bits(swiglu(gate, up, act));
  }
};

// Of any number of experts, of which one may be shared.
struct UpOfMany : Up {
  __device__ OneChoice choose() const {
    return routing.logits != nullptr ? choose_left(routing) : chosen();
  }
  __device__ void publish(const OneChoice& one) const {
    if (routing.logits != nullptr) store_one(routing, weigh_left(one, routing));
  }
};

__device__ __forceinline__ void store_relu2(uint16_t* u, float first, float second) {
  *reinterpret_cast<uint32_t*>(u) = cuda::pack_bf16(relu2(first), relu2(second));
}

struct UpOfRelu2 : Up {
  __device__ void store(int row, int weight_row, float first, float second) const {
    store_relu2(u + int64_t{row} * width + weight_row, first, second);
  }
};

// Of one token of few.
struct UpOfToken : TokenChoice {
  uint16_t* u;
  const uint16_t* h;
  int width, hidden;
  Swiglu act;

  __device__ OneChoice choose() const { return is_left() ? choose_few() : chosen(); }
  __device__ void publish(const OneChoice& one) const {
    if (is_left()) store_one(routing, {weigh(one.choice, top_k), one.slot}, token());
  }
  __device__ uint4 load_one(int, int k) const {
    return __ldcg(reinterpret_cast<const uint4*>(h + token() * hidden + k));
  }
  __device__ void store(int slot, int weight_row, float gate, float up) const {
    u[slot * width + weight_row / 2] = cuda::bf16_bits(swiglu(gate, up, act));
  }
};

// Of any number of experts, of which one may be shared.
struct UpOfTokenOfMany : UpOfToken, OneBlock {
  __device__ OneChoice choose() const { return is_left() ? placed(choose_left(here())) : chosen(); }
  __device__ OneChoice weighed(const OneChoice& one) const { return placed(one); }
  __device__ void publish(const OneChoice& one) const {
    if (is_left()) store_one(routing, weigh_left(one, here()), token());
  }
};

struct UpOfTokenOfRelu2 : UpOfTokenOfMany {
  __device__ void store(int slot, int weight_row, float first, float second) const {
    store_relu2(u + slot * width + weight_row, first, second);
  }
};

Up make_op(const Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing,
           const Weight& up, const Swiglu& act) {
  return {.is_chosen_before = cx.stream.order.is_complete(routing.ids),
          .u = u.as<uint16_t>(),
          .h = h.as<uint16_t>(),
          .token = routing.token,
          .offsets = routing.offsets,
          .tokens = routing.num_tokens,
          .top_k = routing.top_k,
          .experts = routing.num_experts,
          .width = static_cast<int>(up.rows / act.rows_each()),
          .hidden = static_cast<int>(up.cols),
          .act = act,
          .routing = routing};
}

UpOfToken token_op(const Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing,
                   const Weight& up, const Swiglu& act) {
  return {{.routing = routing,
           .is_chosen_before = cx.stream.order.is_complete(routing.ids),
           .top_k = routing.top_k},
          u.as<uint16_t>(),
          h.as<uint16_t>(),
          static_cast<int>(up.rows / act.rows_each()),
          static_cast<int>(up.cols),
          act};
}

}  // namespace

void moe_up(Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing, const Weight& up,
            const Swiglu& act) {
  const Up op = make_op(cx, u, h, routing, up, act);
  if (routing.num_tokens != 1)
    launch_experts<Items::kExperts, true>(cx, up, op, routing.num_tokens);
  else if (has_few(routing))
    launch_chosen<false, kMostOfOne>(cx, up, op, 1);
  else
    launch_chosen<false, kMostOfOne>(cx, up, UpOfMany{op}, 1);
}

void moe_up_each(Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing,
                 const Weight& up, const Swiglu& act) {
  if (routing.num_tokens == 0) return;
  const UpOfToken op = token_op(cx, u, h, routing, up, act);
  if (has_few(routing))
    launch_chosen<false, kMaxItems>(cx, up, op, routing.num_tokens);
  else
    launch_chosen<false, kMaxItems>(cx, up, UpOfTokenOfMany{op}, routing.num_tokens);
}

void moe_up_batch(Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing,
                  const Weight& up, const Swiglu& act) {
  if (routing.num_tokens == 1) return gpu::moe_up(cx, u, h, routing, up, act);
  launch_experts<Items::kExperts, false>(cx, up, make_op(cx, u, h, routing, up, act),
                                         routing.num_tokens);
}

void moe_up_few(Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing, const Weight& up,
                const Swiglu& act) {
  CHECK(routing.logits == nullptr);
  if (routing.num_tokens == 0) return;
  const Up op = make_op(cx, u, h, routing, up, act);
  if (act.is_relu2())
    launch_unit_experts(cx, up, UpOfRelu2{op}, routing);
  else
    launch_unit_experts(cx, up, op, routing);
}

void moe_up_one(Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing, const Weight& up,
                const Swiglu& act) {
  if (routing.num_tokens == 0) return;
  const UpOfToken op = token_op(cx, u, h, routing, up, act);
  const int tokens = routing.num_tokens;
  if (act.is_relu2())
    launch_unit_one<OneWork::kChosen>(cx, up, UpOfTokenOfRelu2{{op}}, true, tokens);
  else if (has_few(routing))
    launch_unit_one<OneWork::kChosen>(cx, up, op, true, tokens);
  else
    launch_unit_one<OneWork::kChosen>(cx, up, UpOfTokenOfMany{op}, true, tokens);
}

}  // namespace nibble::ops::gpu
