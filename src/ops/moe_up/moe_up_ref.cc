#include "ops/matmul_ref.h"
#include "ops/moe_up/moe_up.h"
#include "ops/store.h"

namespace nibble::ops::ref {

void moe_up(Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing, const Weight& up,
            const Swiglu& act) {
  const int64_t width = up.rows / 2;
  for (int64_t e = 0; e < routing.num_experts; ++e) {
    if (routing.counts[e] == 0) continue;
    for (int64_t j = 0; j < width; ++j) {
      const Row gate_row(up, e, 2 * j), up_row(up, e, 2 * j + 1);
      for (int64_t slot = routing.offsets[e]; slot < routing.offsets[e + 1]; ++slot) {
        const float* row = h.as<float>() + routing.token[slot] * up.cols;
        u.as<float>()[slot * width + j] =
            stored(cx.activations, swiglu(gate_row.dot(row), up_row.dot(row), act));
      }
    }
  }
}

}  // namespace nibble::ops::ref
