// attention: every token looks at the keys of its own sequence up to itself, in pages, with a
// learned sink per head that joins the softmax's denominator and has no value.
//   s_j = scale * q.k_j;  att = sum_j exp(s_j) v_j / (exp(sink) + sum_j exp(s_j))
#pragma once

#include "ops/ctx.h"
#include "ops/step.h"
#include "ops/weight.h"

namespace nibble::ops {

struct AttentionDesc {
  int64_t q_heads = 0;  // head h reads KV head h / (Q / G)
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;  // 0: none
  int64_t tokens = 1;  // the most of a step that it is to serve
  bool operator==(const AttentionDesc&) const = default;
};

struct AttentionParams {
  float scale = 1;
  int32_t window = 0;               // keys pos - window + 1 .. pos; 0: all
  const uint16_t* sinks = nullptr;  // [Q] bf16, or none
};

// att [T, Q * D] f32, out; q [T, Q * D] f32; kv: pages that hold keys and values of all positions
// that the step's tokens see, their own included.
using AttentionFn = void(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
                         const AttentionParams& params, const Step& s);
using AttentionKernel = Kernel<AttentionDesc, AttentionFn>;

// site.sinks, if it has them; the window is its problem's.
void attention(Ctx& cx, const Site& site, const Tensor& att, const Tensor& q, const KvLayer& kv,
               float scale, const Step& s);
std::span<const AttentionKernel> attention_kernels();

// For one sequence of `context` tokens with `tokens` more, keys and values of kv_bytes each; an
// element of q and att has act_bytes.
int64_t bytes(const AttentionDesc& desc, int64_t tokens, int64_t context, int64_t kv_bytes,
              int64_t act_bytes = 4);
int64_t flops(const AttentionDesc& desc, int64_t tokens, int64_t context);

// Working memory of its kernels.
int64_t scratch_bytes(const AttentionDesc& desc, int threads);

// The blocked float path, for kAvx512, kAvx2, kNeon and kScalar: any heads, dims and window;
// products of bf16 for kAmx and kAvx512Bf16.
template <cpu::Isa kIsa>
struct BlockedAttention {
  static AttentionFn run;
};
namespace ref {
AttentionFn attention;
}
// att, q bf16, pages bf16 or E4M3. But for attend_any: D = 64, 128 or 256, at most 16 query heads
// to a KV head.
namespace gpu {
AttentionFn attend_spans, attend_spans_sm90;  // spans of several tokens by tiles of them
AttentionFn attend_tokens;  // each token by itself: its bits do not depend on the batch
AttentionFn attend_any;     // any even D up to 512, any heads, contexts and pages; the same of bits

// Working memory for steps of up to desc.tokens tokens.
int64_t scratch_bytes(const AttentionDesc& desc);
}  // namespace gpu
}  // namespace nibble::ops
