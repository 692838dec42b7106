// moe_down for few tokens: MXFP4 weights in kTiles16x64 by int8 digits (ops/gpu_matmul/tiles.cuh).
// d [T, H] f32, out, or added to; u [T * K, F] bf16 by slot; down [E, H, F] with bias.
// Needs H % 16 == 0, F % 64 == 0, F <= 4608, K <= 8, E <= 256 (512 threads count the slots); NVFP4
// weights F <= 16384, K <= 16, E <= 513.
// One token, or each of a few: gemv_chosen, whose weights come while moe_up still runs; NVFP4:
// unit_one. More: products by slot into scratch, then a kernel that weighs them, each half of the
// choices in order. Bytes: the weights of the distinct experts; gpt-oss-120b, one token: 17.6
// MB, 3.9 us of an H200's 4.55 TB/s, 76 us of a GB10's 233 GB/s. TB/s by tokens:
// ops/gpu_matmul/grouped_gemm.cuh.
#include "ops/gpu_matmul/gemv_chosen.cuh"
#include "ops/gpu_matmul/unit_gemv.cuh"
#include "ops/gpu_matmul/unit_one.cuh"
#include "ops/moe_down/down_by_slot.cuh"
#include "ops/moe_down/moe_down.h"
#include "ops/norm_route/route.cuh"
#include "ops/norm_route/token_choice.cuh"

namespace nibble::ops::gpu {
namespace {

constexpr int kCombineThreads = 256;
constexpr int kCombineBlocks = (NIBBLE_CUDA_SM == 121 ? 1536 : 2048) / kCombineThreads;  // of an SM

// A thread owns four columns. is_chosen_before: of slot and p. kMost: choices. Of few,
// all blocks of 256 tokens run at once, with room for the next kernel's beside them.
template <int kMost>
__global__ void __launch_bounds__(kCombineThreads, kMost <= 4   ? kCombineBlocks
                                                   : kMost <= 8 ? kCombineBlocks / 2
                                                                : kCombineBlocks / 4)
    combine_rows(float* d, const float* y, const int32_t* slot, const float* p, int top_k,
                 int hidden, bool adds, bool is_chosen_before) {
  cuda::griddep_launch_dependents();
  if (!is_chosen_before) cuda::griddep_wait();
  const int column = 4 * (blockIdx.x * kCombineThreads + threadIdx.x), t = blockIdx.y;
  uint32_t from[kMost];
  float weight[kMost];
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int choice = t * top_k + min(i, top_k - 1);
    from[i] = static_cast<uint32_t>(__ldcg(slot + choice)) * hidden + column;
    weight[i] = __ldcg(p + choice);
  }
  cuda::griddep_wait();
  if (column >= hidden) return;
  float4 first{}, second{}, v[kMost];
  auto* const to = reinterpret_cast<float4*>(d + int64_t{t} * hidden + column);
  if (adds) first = __ldcg(to);
#pragma unroll
  for (int i = 0; i < kMost; ++i)
    if (i < top_k) v[i] = __ldcg(reinterpret_cast<const float4*>(y + from[i]));
  const auto add = [](float4& sum, float by, const float4& x) {
    sum = {fmaf(by, x.x, sum.x), fmaf(by, x.y, sum.y), fmaf(by, x.z, sum.z), fmaf(by, x.w, sum.w)};
  };
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    if (i < (top_k + 1) / 2)
      add(first, weight[i], v[i]);
    else if (i < top_k)
      add(second, weight[i], v[i]);
  }
  *to = {first.x + second.x, first.y + second.y, first.z + second.z, first.w + second.w};
}

// One token: all its experts at once.
struct DownOne {
  float* d;           // [H]
  const uint16_t* u;  // [K, width] by slot
  const int32_t *ids, *slot;
  const float* p;
  const float* logits;  // if the choice was left to moe_up, which may still be making it
  bool is_chosen_before, adds;
  int top_k, width, experts;

  __device__ OneChoice choose() const {
    if (logits != nullptr)
      return place_one(weigh(gpu::choose<kFewRouted / 32>(logits, experts, top_k), top_k), top_k);
    return chosen();
  }
  __device__ OneChoice chosen() const {
    const int lane = threadIdx.x % 32;
    if (lane >= top_k) return {};
    return {{__ldcg(ids + lane), __ldcg(p + lane)}, __ldcg(slot + lane)};
  }
  __device__ void fill(Choices& c, const OneChoice& one) const {
    const int lane = threadIdx.x % 32;
    if (lane >= top_k) return;
    c.expert[lane] = one.choice.id;
    c.slot[lane] = one.slot;
    c.weight[lane] = one.choice.p;
  }
  __device__ void publish(const OneChoice&) const {}
  __device__ uint4 load_one(int slot, int k) const {
    return __ldcg(reinterpret_cast<const uint4*>(u + slot * width + k));
  }
  __device__ void store(int row, float v) const { d[row] = adds ? __ldcg(d + row) + v : v; }
};

// Of any number of experts, of which one may be shared.
struct DownOneOfMany : DownOne, OneBlock {
  Routing routing;
  __device__ OneChoice choose() const {
    return logits != nullptr ? weigh_left(choose_left(routing), routing) : chosen();
  }
};

// One token of few: all its experts at once.
struct DownOfToken : TokenChoice {
  float* d;           // [T, hidden]
  const uint16_t* u;  // [T K, width] by slot
  int hidden, width;
  bool adds;

  __device__ OneChoice choose() const {
    if (!is_left()) return chosen();
    OneChoice one = choose_few();
    one.choice = weigh(one.choice, top_k);
    return one;
  }
  __device__ void publish(const OneChoice&) const {}
  __device__ uint4 load_one(int slot, int k) const {
    return __ldcg(reinterpret_cast<const uint4*>(u + slot * width + k));
  }
  __device__ void store(int row, float v) const {
    float* const to = d + token() * hidden + row;
    *to = adds ? __ldcg(to) + v : v;
  }
};

// Of any number of experts, of which one may be shared.
struct DownOfTokenOfMany : DownOfToken, OneBlock {
  __device__ OneChoice choose() const {
    return is_left() ? weighed(choose_left(here())) : chosen();
  }
  __device__ OneChoice weighed(const OneChoice& one) const {
    return placed(weigh_left(one, here()));
  }
};

template <bool kExact>
void run_few(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
             const Weight& down) {
  down_by_slot(cx, d, u, routing, down, [&](const DownBySlot& op, Scratch&) {
    launch_experts<Items::kExperts, kExact>(cx, down, op, routing.num_tokens);
  });
}

}  // namespace

void combine(Ctx& cx, const Tensor& d, const float* y, const Routing& routing) {
  const auto hidden = static_cast<int>(d.dim(1));
  CHECK(int64_t{routing.num_tokens} * routing.top_k * hidden <= UINT32_MAX);  // offsets in y
  CHECK(routing.top_k <= kMaxChoices);
  cuda::launch(
      cx.stream,
      routing.top_k <= 4   ? combine_rows<4>
      : routing.top_k <= 8 ? combine_rows<8>
                           : combine_rows<kMaxChoices>,
      {.grid = dim3((hidden / 4 + kCombineThreads - 1) / kCombineThreads, routing.num_tokens),
       .block = dim3(kCombineThreads)},
      d.as<float>(), y, routing.slot, routing.p, routing.top_k, hidden, routing.adds,
      cx.stream.order.is_complete(routing.ids));
}

namespace {

bool is_chosen_before(const Ctx& cx, const Routing& r) {
  return cx.stream.order.is_complete(r.logits != nullptr ? static_cast<const void*>(r.logits)
                                                         : r.ids);
}

DownOne one_of(const Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
               const Weight& down) {
  return {.d = d.as<float>(),
          .u = u.as<uint16_t>(),
          .ids = routing.ids,
          .slot = routing.slot,
          .p = routing.p,
          .logits = routing.logits,
          .is_chosen_before = is_chosen_before(cx, routing),
          .adds = routing.adds,
          .top_k = routing.top_k,
          .width = static_cast<int>(down.cols),
          .experts = routing.num_experts};
}

DownOfToken token_op(const Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                     const Weight& down) {
  return {{.routing = routing,
           .is_chosen_before = is_chosen_before(cx, routing),
           .top_k = routing.top_k},
          d.as<float>(),
          u.as<uint16_t>(),
          static_cast<int>(down.rows),
          static_cast<int>(down.cols),
          routing.adds};
}

}  // namespace

void moe_down(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
              const Weight& down) {
  if (routing.num_tokens != 1) return run_few<true>(cx, d, u, routing, down);
  const DownOne op = one_of(cx, d, u, routing, down);
  if (has_few(routing))
    launch_chosen<true, kMostOfOne>(cx, down, op, 1);
  else
    launch_chosen<true, kMostOfOne>(cx, down, DownOneOfMany{op, {}, routing}, 1);
}

void moe_down_each(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                   const Weight& down) {
  if (routing.num_tokens == 0) return;
  const DownOfToken op = token_op(cx, d, u, routing, down);
  if (has_few(routing))
    launch_chosen<true, kMaxItems>(cx, down, op, routing.num_tokens);
  else
    launch_chosen<true, kMaxItems>(cx, down, DownOfTokenOfMany{op}, routing.num_tokens);
}

void moe_down_one(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                  const Weight& down) {
  if (routing.num_tokens == 0) return;
  const DownOfToken op = token_op(cx, d, u, routing, down);
  if (has_few(routing))
    launch_unit_one<OneWork::kSum>(cx, down, op, false, routing.num_tokens);
  else
    launch_unit_one<OneWork::kSum>(cx, down, DownOfTokenOfMany{op}, false, routing.num_tokens);
}

void moe_down_slots(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                    const Weight& down) {
  run_few<true>(cx, d, u, routing, down);
}

void moe_down_batch(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                    const Weight& down) {
  if (routing.num_tokens == 1) return gpu::moe_down(cx, d, u, routing, down);
  run_few<false>(cx, d, u, routing, down);
}

void moe_down_few(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                  const Weight& down) {
  CHECK(routing.logits == nullptr);
  if (routing.num_tokens == 0) return;
  down_by_slot(cx, d, u, routing, down,
               [&](const DownBySlot& op, Scratch&) { launch_unit_experts(cx, down, op, routing); });
}

}  // namespace nibble::ops::gpu
