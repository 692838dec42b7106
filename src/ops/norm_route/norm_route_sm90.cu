// norm_route on a Hopper GPU for many tokens, in four launches: the norm, the router's product by
// the wgmma GEMM, the choices, and the sort. Shapes and bytes: norm_route_many_cuda.cu.
#include "cuda/launch.cuh"
#include "ops/gpu_matmul/gemm_sm90.h"
#include "ops/norm/add_norm.h"
#include "ops/norm_route/norm_route.h"
#include "ops/norm_route/route.cuh"
#include "ops/norm_route/route_scratch.h"
#include "ops/norm_route/sort_choices.h"

namespace nibble::ops::gpu {
namespace {

constexpr int kTokens = 16;  // of a block: a warp each
constexpr int kThreads = kTokens * 32;

// h [T, hidden] bf16 and logits [T, experts] f32, in; routing.ids, p and tile_counts [tiles of
// kTokens tokens, E], out.
__global__ void __launch_bounds__(kThreads)
    choose_tiles(const __grid_constant__ Routing r, const uint16_t* h, const float* logits,
                 int experts, int hidden, int32_t* tile_counts) {
  __shared__ int32_t counts[kMaxListed];
  for (int e = threadIdx.x; e < r.num_experts; e += kThreads) counts[e] = 0;
  __syncthreads();
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int t = blockIdx.x * kTokens + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (t < r.num_tokens) {
    const Choice mine = choose_of<kTokens>(logits + int64_t{t} * experts, r,
                                           shared_logit(h + int64_t{t} * hidden, r, hidden));
    if (lane < r.top_k) {
      r.ids[t * r.top_k + lane] = mine.id;
      r.p[t * r.top_k + lane] = mine.p;
      atomicAdd(&counts[mine.id], 1);
    }
  }
  __syncthreads();
  for (int e = threadIdx.x; e < r.num_experts; e += kThreads)
    tile_counts[int64_t{blockIdx.x} * r.num_experts + e] = counts[e];
}

}  // namespace

void norm_route_gemm(Ctx& cx, const Tensor& y, const Tensor& h, Routing& routing, const Tensor& x,
                     const Tensor& d, const Norm& norm, const Weight& router) {
  if (routing.num_tokens == 0) return;
  add_norm(cx, {.y = y.as<float>(),
                .h = h.as<uint16_t>(),
                .x = x.as<float>(),
                .d = d.as<float>(),
                .norm = norm,
                .tokens = routing.num_tokens,
                .hidden = router.cols});
  routing.logits = nullptr;
  const RouteScratch scratch(Scratch(cx.scratch), routing.num_tokens, routing.num_experts);
  gemm(cx, router, h.as<uint16_t>(), routing.num_tokens, scratch.logits);
  const int tiles = (routing.num_tokens + kTokens - 1) / kTokens;
  cuda::launch(cx.stream, choose_tiles,
               {.grid = dim3(tiles), .block = dim3(kThreads), .release = cuda::Release::kAfterWait},
               routing, h.as<uint16_t>(), scratch.logits, static_cast<int>(router.rows),
               static_cast<int>(router.cols), scratch.tile_counts);
  sort_choices(cx, routing, scratch.tile_counts, kTokens * routing.top_k);
}

}  // namespace nibble::ops::gpu
