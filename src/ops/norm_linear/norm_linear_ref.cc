#include "ops/matmul_ref.h"
#include "ops/norm_linear/norm_linear.h"
#include "ops/norm_ref.h"

namespace nibble::ops::ref {

void norm_linear(Ctx& cx, const NormLinearOut& out, const Tensor& x, const Tensor& d,
                 const Norm& norm, const Weight& in) {
  const int64_t hidden = in.cols, tokens = x.dim(0);
  float *y = out.y.as<float>(), *h = out.h.as<float>();
  add(y, x.as<float>(), d.as<float>(), tokens * hidden);
  for (int64_t t = 0; t < tokens; ++t)
    rms_norm(cx.activations, h + t * hidden, y + t * hidden, norm, hidden);
  for (int64_t n = 0; n < in.rows; ++n) {
    const Row row(in, 0, n);
    for (int64_t t = 0; t < tokens; ++t)
      out.p.as<float>()[t * in.rows + n] = static_cast<float>(row.dot(h + t * hidden));
  }
}

}  // namespace nibble::ops::ref
