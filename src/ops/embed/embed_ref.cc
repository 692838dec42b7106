#include <algorithm>

#include "ops/embed/embed.h"
#include "ops/matmul_ref.h"

namespace nibble::ops::ref {

// Exact: every weight format's values are float32 values, and table rows are activations already.
void embed(Ctx& cx, const EmbedOut& out, const Weight& table, const Rope& rope, const Step& s) {
  for (int64_t t = 0; t < s.num_tokens; ++t)
    decode_row(table, 0, s.tokens[t], out.x.as<float>() + t * table.cols);
  std::fill_n(out.d.as<float>(), s.num_tokens * table.cols, 0.0f);
  rope_angles(cx, out.cos_sin, rope, s);
}

}  // namespace nibble::ops::ref
