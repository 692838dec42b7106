// whole_logits: of a model whose vocabulary is cut over several GPUs, the logits of all of them
// side by side, the same bits on each: then each finds the same ids in them, and no id is to be
// sent.
#pragma once

#include <cstdint>

#include "ops/ctx.h"

namespace nibble::ops {

struct VocabCut {
  int64_t vocab = 0;  // V
  int64_t begin = 0;  // the rank's first column
};

// mine [R, n] f32, the columns from `begin` on. Fills the first R * V floats of `whole`, which has
// room for one more. Returns [R, V].
using WholeLogitsFn = Tensor(Ctx& cx, const Tensor& whole, const Tensor& mine, const VocabCut& cut);

WholeLogitsFn whole_logits;  // GPUs only
namespace gpu {
WholeLogitsFn whole_logits;
}
}  // namespace nibble::ops
