#include "ops/matmul_ref.h"
#include "ops/mlp_up/mlp_up.h"
#include "ops/norm_ref.h"
#include "ops/store.h"

namespace nibble::ops::ref {

void mlp_up(Ctx& cx, const MlpUpOut& out, const Tensor& x, const Tensor& d, const Norm& norm,
            const Weight& up, const Swiglu& act) {
  const int64_t hidden = up.cols, width = up.rows / 2, tokens = x.dim(0);
  float *y = out.y.as<float>(), *h = out.h.as<float>();
  add(y, x.as<float>(), d.as<float>(), tokens * hidden);
  for (int64_t t = 0; t < tokens; ++t)
    rms_norm(cx.activations, h + t * hidden, y + t * hidden, norm, hidden);
  for (int64_t j = 0; j < width; ++j) {
    const Row gate_row(up, 0, 2 * j), up_row(up, 0, 2 * j + 1);
    for (int64_t t = 0; t < tokens; ++t)
      out.u.as<float>()[t * width + j] = stored(
          cx.activations, swiglu(gate_row.dot(h + t * hidden), up_row.dot(h + t * hidden), act));
  }
}

}  // namespace nibble::ops::ref
