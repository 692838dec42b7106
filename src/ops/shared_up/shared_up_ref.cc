#include <cmath>
#include <vector>

#include "ops/matmul_ref.h"
#include "ops/shared_up/shared_up.h"
#include "ops/store.h"

namespace nibble::ops::ref {

void shared_up(Ctx& cx, const Tensor& u, const Tensor& h, const Weight& up, const uint16_t* gate,
               const Swiglu& act) {
  const int64_t hidden = up.cols, width = up.rows / act.rows_each(), tokens = h.dim(0);
  std::vector<double> p(tokens, 1);
  for (int64_t t = 0; gate != nullptr && t < tokens; ++t) {
    double logit = 0;
    for (int64_t i = 0; i < hidden; ++i)
      logit += double{h.as<float>()[t * hidden + i]} * bf16_to_float(gate[i]);
    p[t] = 1 / (1 + std::exp(-logit));
  }
  for (int64_t j = 0; j < width; ++j) {
    const UpColumn column(up, 0, j, act);
    for (int64_t t = 0; t < tokens; ++t) {
      const float* row = h.as<float>() + t * hidden;
      u.as<float>()[t * width + j] = stored(cx.activations, p[t] * column.of(row));
    }
  }
}

}  // namespace nibble::ops::ref
