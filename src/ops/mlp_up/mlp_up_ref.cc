#include "ops/matmul_ref.h"
#include "ops/mlp_up/mlp_up.h"
#include "ops/norm_ref.h"
#include "ops/store.h"

namespace nibble::ops::ref {

void mlp_up(Ctx& cx, const MlpUpOut& out, const Tensor& x, const Tensor& d, const Norm& norm,
            const Weight& up, const Swiglu& act) {
  const int64_t hidden = up.cols, width = up.rows / act.rows_each(), tokens = x.dim(0);
  float *y = out.y.as<float>(), *h = out.h.as<float>();
  add(y, x.as<float>(), d.as<float>(), tokens * hidden);
  for (int64_t t = 0; t < tokens; ++t)
    rms_norm(cx.activations, h + t * hidden, y + t * hidden, norm, hidden);
  for (int64_t j = 0; j < width; ++j) {
    const UpColumn column(up, 0, j, act);
    for (int64_t t = 0; t < tokens; ++t)
      out.u.as<float>()[t * width + j] = stored(cx.activations, column.of(h + t * hidden));
  }
}

}  // namespace nibble::ops::ref
