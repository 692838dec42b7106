// norm_route on a Hopper GPU for many tokens, in four launches: the norm, the router's product by
// the wgmma GEMM, the choices, and the sort. Shapes and bytes: norm_route_many_cuda.cu.
#include "ops/gpu_matmul/gemm_sm90.h"
#include "ops/norm/add_norm.h"
#include "ops/norm_route/choose_and_sort.h"
#include "ops/norm_route/norm_route.h"
#include "ops/norm_route/route_scratch.h"

namespace nibble::ops::gpu {

void norm_route_gemm(Ctx& cx, const Tensor& y, const Tensor& h, Routing& routing, const Tensor& x,
                     const Tensor& d, const Norm& norm, const Weight& router) {
  if (routing.num_tokens == 0) return;
  const int32_t tokens = routing.num_tokens;
  const RouteScratch scratch(Scratch(cx.scratch), tokens, routing.num_experts);
  add_norm(cx,
           {.y = y.as<float>(),
            .h = h.as<uint16_t>(),
            .x = x.as<float>(),
            .d = d.as<float>(),
            .norm = norm,
            .tokens = tokens,
            .hidden = router.cols},
           {routing.shared_gate, scratch.gate_logits});
  routing.logits = nullptr;
  gemm(cx, router, h.as<uint16_t>(), tokens, scratch.logits);
  choose_and_sort(cx, routing, scratch, static_cast<int>(router.rows));
}

}  // namespace nibble::ops::gpu
