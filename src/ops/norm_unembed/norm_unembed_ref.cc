#include <vector>

#include "ops/matmul_ref.h"
#include "ops/norm_ref.h"
#include "ops/norm_unembed/norm_unembed.h"

namespace nibble::ops::ref {

void norm_unembed(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x, const Tensor& d,
                  const Norm& norm, const Weight& unembed, const Step& s) {
  const int64_t hidden = unembed.cols;
  std::vector<float> sum(hidden);
  for (int64_t r = 0; r < s.num_out; ++r) {
    const int64_t at = s.out_rows[r] * hidden;
    add(sum.data(), x.as<float>() + at, d.as<float>() + at, hidden);
    rms_norm(cx.activations, h.as<float>() + r * hidden, sum.data(), norm, hidden);
  }
  for (int64_t n = 0; n < unembed.rows; ++n) {
    const Row row(unembed, 0, n);
    for (int64_t r = 0; r < s.num_out; ++r)
      logits.as<float>()[r * unembed.rows + n] =
          static_cast<float>(row.dot(h.as<float>() + r * hidden));
  }
}

}  // namespace nibble::ops::ref
