#include "ops/matmul_ref.h"
#include "ops/out_proj/out_proj.h"

namespace nibble::ops::ref {

void out_proj(Ctx&, const Tensor& d, const Tensor& att, const Weight& out, const Step& s) {
  for (int64_t n = 0; n < out.rows; ++n) {
    const Row row(out, 0, n);
    for (int64_t t = 0; t < s.num_tokens; ++t)
      d.as<float>()[t * out.rows + n] = static_cast<float>(row.dot(att.as<float>() + t * out.cols));
  }
}

}  // namespace nibble::ops::ref
