// The CUDA kernels that rows of attention share: of single tokens, and of spans of few.
#pragma once

#include "ops/attention/attention.h"

namespace nibble::ops::gpu {

// For every token of the step; or, `by_span`, for the tokens of spans that have only one.
void attend_rows(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
                 const AttentionParams& params, const Step& s, bool by_span);

// For every token of a step whose heads norm_qkv has left: each is a span of its own.
void attend_left_heads(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
                       const AttentionParams& params, const Step& s);

// For the tokens of spans that have only one, where a warp for a share of each token's keys fills
// the GPU.
bool is_for_warps(const AttentionParams& params, const Tensor& q, const KvLayer& kv, const Step& s,
                  int num_sms);
void attend_by_warps(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
                     const AttentionParams& params, const Step& s);

// For spans of several tokens, where these are so few that only with their keys split among blocks
// they fill the GPU; else false, and nothing done.
bool attend_short_spans(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
                        const AttentionParams& params, const Step& s);

}  // namespace nibble::ops::gpu
