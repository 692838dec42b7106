#include "cpu/thread_pool.h"
#include "ops/embed/embed.h"
#include "ops/linear/linear_ref.h"

namespace nibble::ops::copy {

// A token's row is a few kilobytes: decoding it element by element costs nothing next to a layer.
void embed(Ctx& cx, const Tensor& x, const Weight& table, const Step& s) {
  cx.pool->parallel_for(s.num_tokens, 1, [&](int64_t t, int64_t end, int) {
    for (; t < end; ++t) ref::decode_row(table, 0, s.tokens[t], x.as<float>() + t * table.cols);
  });
}

}  // namespace nibble::ops::copy
