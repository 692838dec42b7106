#include "ops/matmul_ref.h"
#include "ops/moe_up/moe_up.h"
#include "ops/store.h"

namespace nibble::ops::ref {

void moe_up(Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing, const Weight& up,
            const Swiglu& act) {
  const int64_t width = up.rows / act.rows_each();
  for (int64_t e = 0; e < routing.num_experts; ++e) {
    if (routing.counts[e] == 0) continue;
    for (int64_t j = 0; j < width; ++j) {
      const UpColumn column(up, e, j, act);
      for (int64_t slot = routing.offsets[e]; slot < routing.offsets[e + 1]; ++slot) {
        const float* row = h.as<float>() + routing.token[slot] * up.cols;
        u.as<float>()[slot * width + j] = stored(cx.activations, column.of(row));
      }
    }
  }
}

}  // namespace nibble::ops::ref
