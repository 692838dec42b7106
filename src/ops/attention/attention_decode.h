// The CUDA kernels that take each token by itself.
#pragma once

#include "ops/attention/attention.h"

namespace nibble::ops::gpu {

// For every token of the step; or, `by_span`, for the tokens of spans that have only one.
void attend_rows(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
                 const AttentionParams& params, const Step& s, bool by_span);

// For the tokens of spans that have only one, where a warp for each token and KV head fills the GPU
// and none of them has many keys.
bool is_short(const AttentionParams& params, const KvLayer& kv, const Step& s, int num_sms);
void attend_short(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
                  const AttentionParams& params, const Step& s);

}  // namespace nibble::ops::gpu
