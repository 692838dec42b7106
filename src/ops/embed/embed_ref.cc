#include "ops/embed/embed.h"
#include "ops/linear/linear_ref.h"

namespace nibble::ops::ref {

// Exact: every weight format's values are float32 values, and table rows are activations already.
void embed(Ctx&, const Tensor& x, const Weight& table, const Step& s) {
  for (int64_t t = 0; t < s.num_tokens; ++t)
    decode_row(table, 0, s.tokens[t], x.as<float>() + t * table.cols);
}

}  // namespace nibble::ops::ref
