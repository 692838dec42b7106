#include "ops/attention/attention.h"

#include <algorithm>

#include "ops/refuse.h"

namespace nibble::ops {
namespace {

template <cpu::Isa kIsa>
constexpr AttentionKernel row(const char* name) {
  return {name, [](const AttentionDesc&, const KernelOptions& o) { return refuse_isa(kIsa, o); },
          BlockedAttention<kIsa>::run};
}

constexpr AttentionKernel kKernels[] = {
    row<cpu::Isa::kAvx512>("avx512_float"),
    row<cpu::Isa::kAvx2>("avx2_float"),
    row<cpu::Isa::kNeon>("neon_float"),
    {"ref", [](const AttentionDesc&, const KernelOptions& o) { return refuse_ref(o); },
     ref::attention},
};

// Keys that tokens context .. context + tokens - 1 see, summed.
int64_t visible(const AttentionDesc& d, int64_t tokens, int64_t context) {
  int64_t sum = 0;
  for (int64_t pos = context; pos < context + tokens; ++pos)
    sum += d.window > 0 ? std::min(pos + 1, d.window) : pos + 1;
  return sum;
}

}  // namespace

std::span<const AttentionKernel> attention_kernels() { return kKernels; }

void attention(Ctx& cx, const Tensor& att, const Tensor& q, const KvLayer& kv,
               const AttentionParams& params, const Step& s) {
  cx.plan->row<AttentionKernel>(Op::kAttention, cx.layer, s.num_tokens)
      .run(cx, att, q, kv, params, s);
}

// Each key and value that any token sees, once; q read, att written.
int64_t bytes(const AttentionDesc& d, int64_t tokens, int64_t context, int64_t kv_bytes) {
  const int64_t keys =
      d.window > 0 ? std::min(context + tokens, d.window - 1 + tokens) : context + tokens;
  return 2 * keys * d.kv_heads * d.head_dim * kv_bytes + 8 * tokens * d.q_heads * d.head_dim;
}

int64_t flops(const AttentionDesc& d, int64_t tokens, int64_t context) {
  return 4 * visible(d, tokens, context) * d.q_heads * d.head_dim;
}

}  // namespace nibble::ops
