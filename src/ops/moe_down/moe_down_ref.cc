#include <vector>

#include "ops/matmul_ref.h"
#include "ops/moe_down/moe_down.h"

namespace nibble::ops::ref {

void moe_down(Ctx&, const Tensor& d, const Tensor& u, const Routing& routing, const Weight& down) {
  const int64_t slots = static_cast<int64_t>(routing.num_tokens) * routing.top_k;
  std::vector<double> y(slots * down.rows);
  for (int64_t e = 0; e < routing.num_experts; ++e) {
    if (routing.counts[e] == 0) continue;
    for (int64_t n = 0; n < down.rows; ++n) {
      const Row row(down, e, n);
      for (int64_t slot = routing.offsets[e]; slot < routing.offsets[e + 1]; ++slot)
        y[slot * down.rows + n] = row.dot(u.as<float>() + slot * down.cols);
    }
  }
  for (int64_t t = 0; t < routing.num_tokens; ++t) {
    for (int64_t n = 0; n < down.rows; ++n) {
      float& out = d.as<float>()[t * down.rows + n];
      double sum = routing.adds ? out : 0;
      for (int64_t k = t * routing.top_k; k < (t + 1) * routing.top_k; ++k)
        sum += routing.p[k] * y[routing.slot[k] * down.rows + n];
      out = static_cast<float>(sum);
    }
  }
}

}  // namespace nibble::ops::ref
