// norm_route of any hidden size and format (cuda_any): the norm, the router's product, the choice
// and the sort, each in a launch of its own.
//   x, d    [T, H] f32, in      y [T, H] f32, h [T, H] bf16, out
//   norm    [H] bf16            router [E, H] in kRows and bias [E] bf16, in
//   routing ids, p, slot [T, K]; counts [E]; offsets [E + 1]; token [T * K], out
// Needs E <= 1,024 (beside a shared expert), K <= 32: a lane of the warp that chooses holds 32
// logits and one choice. Bytes: the sort reads all ids twice for every expert, out of L2.
#include "cuda/bf16.cuh"
#include "cuda/launch.cuh"
#include "ops/gpu_matmul/product_any.h"
#include "ops/norm/add_norm.cuh"
#include "ops/norm/add_norm.h"
#include "ops/norm_route/norm_route.h"
#include "ops/norm_route/route.cuh"
#include "ops/norm_route/route_scratch.h"

namespace nibble::ops::gpu {
namespace {

constexpr int kChooseWarps = 8;
constexpr int kMostPerLane = 32;
constexpr int kFewChoices = 4096;  // of all tokens: up to here the sort's blocks have 4 warps

// The choices with their parts of the softmax over all logits [experts].
__device__ __forceinline__ Choice weigh_over_all(Choice mine, const float* logits, int experts) {
  constexpr unsigned kAll = 0xffffffff;
  const float largest = __shfl_sync(kAll, mine.p, 0);
  float sum = 0;
  for (int e = threadIdx.x % 32; e < experts; e += 32) sum += __expf(__ldcg(logits + e) - largest);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAll, sum, step);
  mine.p = __expf(mine.p - largest) / sum;
  return mine;
}

// By a warp, lane g for group g: a bit of each of the groups whose two best make the most.
__device__ __forceinline__ uint32_t best_groups(const float* logits, const Routing& r, int each) {
  constexpr unsigned kAll = 0xffffffff;
  const int lane = threadIdx.x % 32, groups = r.sigmoid.groups;
  float best = -INFINITY, second = each > 1 ? -INFINITY : 0;
  for (int e = lane * each; lane < groups && e < (lane + 1) * each; ++e) {
    const float score = sigmoid(__ldcg(logits + e)) + __ldg(r.bias + e);
    if (each > 1) second = fmaxf(second, fminf(best, score));
    best = fmaxf(best, score);
  }
  const float sum = best + second;
  int better = 0;
  for (int other = 0; other < groups; ++other) {
    const float theirs = __shfl_sync(kAll, sum, other);
    better += theirs > sum || (theirs == sum && other < lane);
  }
  return __ballot_sync(kAll, lane < groups && better < r.sigmoid.best_groups);
}

template <int kPerLane>
__device__ __forceinline__ Choice choose_any(const float* logits, const Routing& r) {
  if (r.sigmoid.is_used) {
    const int each = r.num_experts / r.sigmoid.groups;
    const Scoring scoring{r.bias, best_groups(logits, r, each), each};
    return weigh_sigmoids(choose<kPerLane>(logits, r.num_experts, r.top_k, scoring), logits, r);
  }
  const Choice mine = choose<kPerLane>(logits, r.num_experts, r.top_k);
  return r.over_all ? weigh_over_all(mine, logits, r.num_experts) : weigh(mine, r.top_k);
}

// A warp a token.
template <int kPerLane>
__global__ void __launch_bounds__(kChooseWarps * 32)
    choose_tokens(const __grid_constant__ Routing r, const __grid_constant__ Routing routed,
                  const float* logits, const uint16_t* h, int hidden) {
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int t = static_cast<int>(blockIdx.x) * kChooseWarps + static_cast<int>(threadIdx.x) / 32;
  if (t >= r.num_tokens) return;
  Choice mine = choose_any<kPerLane>(logits + int64_t{t} * routed.num_experts, routed);
  const int lane = threadIdx.x % 32;
  float logit = 0;
  for (int i = lane; r.shared_gate != nullptr && i < hidden; i += 32)
    logit = fmaf(cuda::bf16_value(h[int64_t{t} * hidden + i]), cuda::bf16_value(r.shared_gate[i]),
                 logit);
  mine = with_shared(mine, r, warp_sum(logit));
  if (lane >= r.top_k) return;
  r.ids[t * r.top_k + lane] = mine.id;
  r.p[t * r.top_k + lane] = mine.p;
}

// A block an expert: how many choices are of lower ones and of its own, then its own in order. A
// warp has a contiguous share of the choices.
template <int kWarps>
__global__ void __launch_bounds__(kWarps * 32) sort_by_blocks(const __grid_constant__ Routing r) {
  __shared__ int32_t lower[kWarps], own[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, e = blockIdx.x;
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int choices = r.num_tokens * r.top_k;
  const int each = (choices + kWarps * 32 - 1) / (kWarps * 32) * 32;
  const int first = min(warp * each, choices), end = min(first + each, choices);
  int num_lower = 0, num_own = 0;
#pragma unroll 4
  for (int i = first + lane; i < end; i += 32) {
    const int id = __ldcg(r.ids + i);
    num_lower += id < e, num_own += id == e;
  }
  num_lower = __reduce_add_sync(0xffffffff, num_lower);
  num_own = __reduce_add_sync(0xffffffff, num_own);
  if (lane == 0) lower[warp] = num_lower, own[warp] = num_own;
  __syncthreads();
  int offset = 0, slot = 0, count = 0;
  for (int w = 0; w < kWarps; ++w) {
    offset += lower[w];
    if (w < warp) slot += own[w];
    count += own[w];
  }
  slot += offset;
  if (threadIdx.x == 0) {
    r.counts[e] = count, r.offsets[e] = offset;
    if (e + 1 == r.num_experts) r.offsets[e + 1] = offset + count;
  }
#pragma unroll 4
  for (int base = first; base < end; base += 32) {
    const int i = base + lane;
    const bool is_own = i < end && __ldcg(r.ids + i) == e;
    const unsigned same = __ballot_sync(0xffffffff, is_own);
    if (is_own) {
      const int at = slot + __popc(same & ((1u << lane) - 1));
      r.slot[i] = at;
      r.token[at] = i / r.top_k;
    }
    slot += __popc(same);
  }
}

// Of a router in float32: a warp an expert, a block kDotTokens tokens.
constexpr int kDotWarps = 8, kDotTokens = 8;
__global__ void __launch_bounds__(kDotWarps * 32)
    dot_f32(const float* router, const uint16_t* bias, const uint16_t* h, int tokens, int experts,
            int hidden, float* logits) {
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int lane = threadIdx.x % 32, first = static_cast<int>(blockIdx.y) * kDotTokens;
  const int e = static_cast<int>(blockIdx.x) * kDotWarps + static_cast<int>(threadIdx.x) / 32;
  if (e >= experts) return;
  float sum[kDotTokens] = {};
  for (int i = lane; i < hidden; i += 32) {
    const float w = __ldg(router + int64_t{e} * hidden + i);
#pragma unroll
    for (int j = 0; j < kDotTokens; ++j)
      if (first + j < tokens)
        sum[j] = fmaf(w, cuda::bf16_value(__ldcg(h + int64_t{first + j} * hidden + i)), sum[j]);
  }
#pragma unroll
  for (int j = 0; j < kDotTokens; ++j) {
    const float logit = warp_sum(sum[j]) + (bias == nullptr ? 0 : cuda::bf16_value(bias[e]));
    if (lane == 0 && first + j < tokens) logits[int64_t{first + j} * experts + e] = logit;
  }
}

void multiply_f32(Ctx& cx, const Weight& router, const uint16_t* h, int32_t tokens, float* logits) {
  const auto experts = static_cast<int>(router.rows);
  cuda::launch(
      cx.stream, dot_f32,
      {.grid = dim3((experts + kDotWarps - 1) / kDotWarps, (tokens + kDotTokens - 1) / kDotTokens),
       .block = dim3(kDotWarps * 32),
       .release = cuda::Release::kAfterWait},
      reinterpret_cast<const float*>(router.codes), router.bias, h, tokens, experts,
      static_cast<int>(router.cols), logits);
}

}  // namespace

void norm_route_any(Ctx& cx, const Tensor& y, const Tensor& h, Routing& routing, const Tensor& x,
                    const Tensor& d, const Norm& norm, const Weight& router) {
  routing.logits = nullptr;
  Routing routed = routing;
  routed.num_experts -= routing.shared, routed.top_k -= routing.shared;
  const auto tokens = routing.num_tokens, experts = static_cast<int32_t>(router.rows);
  CHECK(experts <= 32 * kMostPerLane && routing.top_k <= kMaxTopK);
  if (tokens == 0) return;
  float* const logits = RouteScratch(Scratch(cx.scratch), tokens, experts).logits;
  add_norm_any(cx, {.y = y.as<float>(),
                    .h = h.as<uint16_t>(),
                    .x = x.as<float>(),
                    .d = d.as<float>(),
                    .norm = norm,
                    .tokens = tokens,
                    .hidden = router.cols});
  if (router.format == Format::kF32)
    multiply_f32(cx, router, h.as<uint16_t>(), tokens, logits);
  else
    multiply_any(cx, router, h.as<uint16_t>(), tokens, logits);
  cuda::launch(
      cx.stream, experts <= 128 ? choose_tokens<4> : choose_tokens<kMostPerLane>,
      {.grid = dim3((tokens + kChooseWarps - 1) / kChooseWarps), .block = dim3(kChooseWarps * 32)},
      routing, routed, logits, h.as<uint16_t>(), static_cast<int>(router.cols));
  const bool is_few = int64_t{tokens} * routing.top_k <= kFewChoices;
  cuda::launch(cx.stream, is_few ? sort_by_blocks<4> : sort_by_blocks<32>,
               {.grid = dim3(routing.num_experts), .block = dim3(is_few ? 128 : 1024)}, routing);
}

}  // namespace nibble::ops::gpu
