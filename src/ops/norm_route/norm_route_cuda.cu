// norm_route on a GPU for few tokens, in one launch; under --exact for any number.
//   x, d    [T, H] f32, in      y [T, H] f32, h [T, H] bf16, out
//   norm    [H] bf16            router [E, H] bf16 and bias [E] bf16, in; behind its rows comes a
//                               shared expert's gate
//   routing ids, p, slot [T, K]; counts [E]; offsets [E + 1]; token [T * K], out
// Needs H % 8 == 0, H <= 9,216, E <= 512 beside shared experts, K <= 32.
// Bytes: 2 E H and, a token, 14 H. gpt-oss-120b, T = 1: 0.78 MB, 0.17 us of an H200's 4.5 TB/s (3.3
// us of a GB10's 233 GB/s): latency decides.
// Idea: blocks of a few experts whose weights are in registers before the wait for the kernel
// before; each norms the tokens anew (23 KB each out of the L2 cache), which costs less than a
// barrier among blocks. A thread keeps 8 neighbouring columns; a logit is summed over them, the
// lanes' tree and the warps in order: no order depends on T. The block that comes last chooses and
// sorts; of few tokens the choice is left to every block of moe_up, if that can. Reached on one
// H200, chained in graphs, gpt-oss-120b, 2026-11-21: T = 1 / 2 / 4 / 8 4.3 / 5.8 / 7.9 / 12.2 us
// where it chooses. Prototypes at T = 1: last block chooses 3.7, a cluster of 16 2.9, the consumer
// chooses 2.4. In a step
// of one token that kernel's little code and few registers gain 8 us of 1,467 with dense layers in
// MXFP4, 24 of 1,848 in BF16 (nothing the day before, when moe_up's blocks came too early); there 2
// experts a block are as fast, 1 is not (+5 us).
#include <algorithm>

#include "cuda/bf16.cuh"
#include "cuda/launch.cuh"
#include "cuda/parameters.cuh"
#include "ops/norm/add_norm.cuh"
#include "ops/norm_route/norm_route.h"
#include "ops/norm_route/route.cuh"
#include "ops/norm_route/route_scratch.h"

namespace nibble::ops::gpu {
namespace {

constexpr int kWarps = 12;  // 360 groups of 8 columns at H = 2,880
constexpr int kThreads = kWarps * 32;
constexpr int kExperts = 4;    // of a block
constexpr int kTogether = 4;   // tokens of a block that go side by side
constexpr int kTokens = 8;     // of a block, one after the other
constexpr int kMaxGroups = 3;  // of 8 columns, a thread

struct Params {
  float* y;
  uint16_t* h;
  const float* x;
  const float* d;
  const uint16_t* norm;
  const uint16_t* router;
  const uint16_t* bias;  // or none
  float* logits;         // [T, E], of the first `rows`
  uint32_t* counters;    // [1 + blocks of tokens], zero
  Routing routing;
  int32_t hidden, rows;  // the router's, and a shared expert's gate
  float eps, offset;
};

// Sums of the warps, of tokens that go side by side.
template <int kSideBySide>
struct Parts {
  float squares[kSideBySide][kWarps];
  float dots[kSideBySide][kExperts][kWarps];
};
struct Shared : Parts<kTogether> {
  bool is_last;
  BlockSort<kWarps> sort;
};

// Columns of one thread, kMine groups of 8: group i from column() on.
template <int kMine>
struct Columns {
  uint4 norm[kMine];
  uint4 router[kExperts][kMine];
  float bias;  // of the expert whose logit this thread adds up

  static __device__ __forceinline__ int column(int i) { return 8 * (i * kThreads + threadIdx.x); }
  __device__ __forceinline__ void load(const Params& a, int first_expert) {
    const int mine = first_expert + static_cast<int>(threadIdx.x) % kExperts;
    const int routed = a.routing.num_experts - a.routing.shared;
    const bool has_bias = a.bias != nullptr && mine < routed;
    bias = has_bias ? cuda::bf16_value(a.bias[mine]) : 0;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const bool is_mine = column(i) < a.hidden;
      norm[i] = is_mine ? cuda::load16(a.norm + column(i)) : uint4{};
#pragma unroll
      for (int e = 0; e < kExperts; ++e) {
        const int expert = min(first_expert + e, a.rows - 1);
        const uint16_t* const row =
            expert == routed ? a.routing.shared_gate : a.router + int64_t{expert} * a.hidden;
        router[e][i] = is_mine ? cuda::load16(row + column(i)) : uint4{};
      }
    }
  }
};

// Norms `n` tokens from t on; the first block of experts stores y and h. Logits of the block's
// experts.
template <int kMine, int kSideBySide, int kRoom>
__device__ __forceinline__ void route_tokens(const Params& a, Parts<kRoom>& shared,
                                             const Columns<kMine>& columns, int64_t t, int n) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float y[kSideBySide][kMine][8] = {};
#pragma unroll
  for (int j = 0; j < kSideBySide; ++j)
#pragma unroll
    for (int i = 0; i < kMine; ++i)
      if (j < n && columns.column(i) < a.hidden)
        add_8(y[j][i], a.x, a.d, (t + j) * a.hidden + columns.column(i));
#pragma unroll
  for (int j = 0; j < kSideBySide; ++j) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kMine; ++i) squares = sum_of_squares(y[j][i], squares);
    squares = warp_sum(squares);
    if (lane == 0) shared.squares[j][warp] = squares;
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kSideBySide; ++j) {
    if (j >= n) continue;
    const float inv = inverse_rms_of<kWarps>(shared.squares[j], a.hidden, a.eps);
    uint4 h[kMine];
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      h[i] = norm_8(y[j][i], inv, columns.norm[i], a.offset);
      if (blockIdx.x > 0 || columns.column(i) >= a.hidden) continue;
      const int64_t at = (t + j) * a.hidden + columns.column(i);
      store_8(a.y, at, y[j][i]);
      *reinterpret_cast<uint4*>(a.h + at) = h[i];
    }
#pragma unroll
    for (int e = 0; e < kExperts; ++e) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kMine; ++i) sum = dot_8(h[i], columns.router[e][i], sum);
      sum = warp_sum(sum);
      if (lane == 0) shared.dots[j][e][warp] = sum;
    }
  }
  __syncthreads();
  const int j = threadIdx.x / kExperts, e = threadIdx.x % kExperts;
  const int expert = blockIdx.x * kExperts + e;
  if (j >= n || expert >= a.rows) return;
  float logit = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) logit += shared.dots[j][e][w];
  a.logits[(t + j) * a.routing.num_experts + expert] = logit + columns.bias;
}

__device__ __forceinline__ Choice choose_for(const Params& a, int token) {
  const Routing& r = a.routing;
  const float* const logits = a.logits + int64_t{token} * r.num_experts;
  return choose_of<kWarps>(logits, r, __ldcg(logits + a.rows - 1));
}

// Grid (blocks of experts, blocks of tokens).
template <int kMine>
__global__ void __launch_bounds__(kThreads) route_few(const __grid_constant__ Params a) {
  __shared__ Shared shared;
  const Routing& r = a.routing;
  cuda::griddep_launch_dependents();
  Columns<kMine> columns;
  columns.load(a, blockIdx.x * kExperts);
  cuda::griddep_wait();
  const int first = blockIdx.y * kTokens, end = min(first + kTokens, r.num_tokens);
  constexpr int kSideBySide = kMine == 1 ? kTogether : 1;
  for (int t = first; t < end; t += kSideBySide)
    route_tokens<kMine, kSideBySide>(a, shared, columns, t, min(kSideBySide, end - t));
  if (!is_last_block(shared.is_last, a.counters + 1 + blockIdx.y, gridDim.x)) return;
  if (r.num_tokens == 1) {
    if (threadIdx.x < 32) store_one(r, place_one(choose_for(a, 0), r.top_k));
    return;
  }
  const int lane = threadIdx.x % 32;
  for (int t = first + threadIdx.x / 32; t < end; t += kWarps) {
    const Choice mine = choose_for(a, t);
    if (lane < r.top_k) {
      r.ids[t * r.top_k + lane] = mine.id;
      r.p[t * r.top_k + lane] = mine.p;
    }
  }
  if (gridDim.y > 1 && !is_last_block(shared.is_last, a.counters, gridDim.y)) return;
  __syncthreads();
  shared.sort.run(r);
}

// The choice left to moe_up: little code, and of one token so few registers that its blocks start
// beside out_proj's.
template <int kMine, int kSideBySide>
__global__ void __launch_bounds__(kThreads, kMine == 1 && kSideBySide == 1 ? 2 : 1)
    route_left(const __grid_constant__ Params a) {
  __shared__ Parts<kSideBySide> shared;
  cuda::griddep_launch_dependents();
  Columns<kMine> columns;
  columns.load(a, blockIdx.x * kExperts);
  cuda::touch_parameters(a);
  cuda::griddep_wait();
  if constexpr (kSideBySide == 1) {
    route_tokens<kMine, 1>(a, shared, columns, 0, 1);
  } else {
    const int tokens = a.routing.num_tokens;
#pragma unroll 1
    for (int t = 0; t < tokens; t += kSideBySide)
      route_tokens<kMine, kSideBySide>(a, shared, columns, t, min(kSideBySide, tokens - t));
  }
}

}  // namespace

void norm_route_few(Ctx& cx, const Tensor& y, const Tensor& h, Routing& routing, const Tensor& x,
                    const Tensor& d, const Norm& norm, const Weight& router) {
  const int32_t tokens = routing.num_tokens, experts = routing.num_experts;
  const auto rows = static_cast<int32_t>(router.rows) + (routing.shared_gate != nullptr);
  const bool is_wide = router.cols > 8 * kThreads;
  // Wide rows of several tokens would take more registers than there are.
  const bool leaves_choice = readers_choose(cx, routing) && (tokens == 1 || !is_wide);
  const dim3 grid((rows + kExperts - 1) / kExperts,
                  leaves_choice ? 1 : (tokens + kTokens - 1) / kTokens);
  CHECK(1 + grid.y <= Ctx::kNumCounters);
  float* const logits =
      leaves_choice ? routing.room : RouteScratch(Scratch(cx.scratch), tokens, experts).logits;
  routing.logits = leaves_choice ? logits : nullptr;
  const Params a{.y = y.as<float>(),
                 .h = h.as<uint16_t>(),
                 .x = x.as<float>(),
                 .d = d.as<float>(),
                 .norm = norm.weight,
                 .router = reinterpret_cast<const uint16_t*>(router.codes),
                 .bias = router.bias,
                 .logits = logits,
                 .counters = cx.counters,
                 .routing = routing,
                 .hidden = static_cast<int32_t>(router.cols),
                 .rows = rows,
                 .eps = norm.eps,
                 .offset = norm.offset};
  const auto left = is_wide       ? route_left<kMaxGroups, 1>
                    : tokens == 1 ? route_left<1, 1>
                                  : route_left<1, kTogether>;
  const auto kernel = leaves_choice ? left : (is_wide ? route_few<kMaxGroups> : route_few<1>);
  cuda::launch(cx.stream, kernel, {.grid = grid, .block = dim3(kThreads)}, a);
}

}  // namespace nibble::ops::gpu
