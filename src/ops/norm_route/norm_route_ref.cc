#include <vector>

#include "ops/matmul_ref.h"
#include "ops/norm_ref.h"
#include "ops/norm_route/norm_route.h"

namespace nibble::ops::ref {

void norm_route(Ctx& cx, const Tensor& y, const Tensor& h, Routing& routing, const Tensor& x,
                const Tensor& d, const Norm& norm, const Weight& router) {
  const int64_t hidden = router.cols, experts = router.rows, tokens = routing.num_tokens;
  add(y.as<float>(), x.as<float>(), d.as<float>(), tokens * hidden);
  std::vector<float> logits(tokens * experts);
  for (int64_t t = 0; t < tokens; ++t)
    rms_norm(cx.activations, h.as<float>() + t * hidden, y.as<float>() + t * hidden, norm, hidden);
  for (int64_t e = 0; e < experts; ++e) {
    const Row row(router, 0, e);
    for (int64_t t = 0; t < tokens; ++t)
      logits[t * experts + e] = static_cast<float>(row.dot(h.as<float>() + t * hidden));
  }
  for (int64_t t = 0; t < tokens; ++t) {
    choose_experts(logits.data() + t * experts, routing, t);
    add_shared(routing, t, h.as<float>() + t * hidden, hidden);
  }
  sort_by_expert(routing);
}

}  // namespace nibble::ops::ref
