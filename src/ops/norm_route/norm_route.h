// norm_route: y = x + d; h = norm(y); router logits g = h Wr^T + b; the K largest, softmax over
// those, or over all; or sigmoids of them (SigmoidRoute), p = scale * s / (sum over the chosen).
#pragma once

#include "ops/ctx.h"
#include "ops/routing.h"
#include "ops/step.h"
#include "ops/weight.h"

namespace nibble::ops {

struct NormRouteDesc {
  int64_t hidden = 0;
  int64_t experts = 0;
  int64_t top_k = 0;
  Format format = Format::kBF16;
  int64_t tokens = 1;     // the most of a step that it is to serve
  bool over_all = false;  // Routing::over_all
  SigmoidRoute sigmoid = {};
  int64_t shared = 0;  // Routing::shared
  bool operator==(const NormRouteDesc&) const = default;
};

// y, h [T, H] f32, out; routing: out, its sizes set by the caller; x, d [T, H] f32; y is not x;
// router [E, H], a shared expert left out. Logits are float32; ties go to the lower expert.
using NormRouteFn = void(Ctx& cx, const Tensor& y, const Tensor& h, Routing& routing,
                         const Tensor& x, const Tensor& d, const Norm& norm, const Weight& router);
using NormRouteKernel = Kernel<NormRouteDesc, NormRouteFn>;

// site.norm; site.weight: router; site.route_bias; site.gate: of a shared expert, or none.
void norm_route(Ctx& cx, const Site& site, const Tensor& y, const Tensor& h, Routing& routing,
                const Tensor& x, const Tensor& d);
std::span<const NormRouteKernel> norm_route_kernels();

// An element of h has act_bytes.
int64_t bytes(const NormRouteDesc& desc, int64_t tokens, int64_t act_bytes = 4);
int64_t flops(const NormRouteDesc& desc, int64_t tokens);

// ids [K] and p [K] of one token from its logits [E].
void choose_experts(const float* logits, int64_t experts, int64_t top_k, int32_t* ids, float* p,
                    bool over_all = false);
// The same by `r`'s rule, into its arrays.
void choose_experts(const float* logits, const Routing& r, int64_t token);
// Behind those the shared ones, if there are any, for a token whose h is [hidden].
void add_shared(const Routing& r, int64_t token, const float* h, int64_t hidden);

// Working memory of its kernels for steps of up to `tokens` tokens.
int64_t scratch_bytes(const NormRouteDesc& desc, int64_t tokens, int threads);

// The blocked float path; defined for kAvx512, kAvx2, kNeon and kScalar.
template <cpu::Isa kIsa>
struct BlockedNormRoute {
  static NormRouteFn run;
};
namespace ref {
NormRouteFn norm_route;
}
// h bf16.
namespace gpu {
NormRouteFn norm_route_few, norm_route_many, norm_route_gemm, norm_route_any;

// Whether those who read the routing of cx.site choose the experts, from logits [T, E] in r.room.
// That saves the wait for the last block that has some, and the sort.
bool readers_choose(const Ctx& cx, const Routing& r);

// Working memory for steps of up to desc.tokens tokens.
int64_t scratch_bytes(const NormRouteDesc& desc);
}  // namespace gpu
}  // namespace nibble::ops
