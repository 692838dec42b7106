// attend_rows: the CUDA kernel that takes each token by itself.
#pragma once

#include "ops/attention/attention.h"

namespace nibble::ops::gpu {

// For every token of the step; or, `by_span`, for the tokens of spans that have only one.
void attend_rows(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
                 const AttentionParams& params, const Step& s, bool by_span);

}  // namespace nibble::ops::gpu
