#include <algorithm>

#include "cpu/thread_pool.h"
#include "ops/embed/embed.h"
#include "ops/matmul_ref.h"

namespace nibble::ops::copy {

// A token's row is a few kilobytes: decoding it element by element costs nothing next to a layer.
void embed(Ctx& cx, const EmbedOut& out, const Weight& table, const Rope& rope, const Step& s) {
  const int64_t hidden = table.cols;
  cx.pool->parallel_for(s.num_tokens, 1, [&](int64_t t, int64_t end, int) {
    for (; t < end; ++t) {
      ref::decode_row(table, 0, s.tokens[t], out.x.as<float>() + t * hidden);
      std::fill_n(out.d.as<float>() + t * hidden, hidden, 0.0f);
    }
  });
  rope_angles(cx, out.cos_sin, rope, s);
}

}  // namespace nibble::ops::copy
