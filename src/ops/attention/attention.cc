#include "ops/attention/attention.h"

#include <algorithm>

#include "ops/attention/attention_any.h"
#include "ops/attention/attention_scratch.h"
#include "ops/refuse.h"
#include "ops/site.h"

namespace nibble::ops {
namespace {

template <cpu::Isa kIsa>
constexpr AttentionKernel row(const char* name) {
  return {name, [](const AttentionDesc&, const KernelOptions& o) { return refuse_isa(kIsa, o); },
          BlockedAttention<kIsa>::run};
}

// Queries and weights in bf16, where the activations of products are coarser still.
template <cpu::Isa kIsa>
constexpr AttentionKernel bf16_row(const char* name) {
  return {name,
          [](const AttentionDesc& d, const KernelOptions& o) -> const char* {
            if (const char* reason = refuse_isa(kIsa, o)) return reason;
            if (o.activations != ActFormat::kInt8 && o.activations != ActFormat::kInt8Row)
              return "activations are not int8";
            return d.head_dim % 32 == 0 ? nullptr : "head dims are not a multiple of 32";
          },
          BlockedAttention<kIsa>::run};
}

const char* refuse_cuda(const AttentionDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_cpu(o)) return reason;
  if (d.head_dim != 64 && d.head_dim != 128 && d.head_dim != 256)
    return "needs heads of 64, 128 or 256 dims";
  if (d.q_heads > 16 * d.kv_heads) return "needs at most 16 query heads to a KV head";
  return nullptr;
}

// All tokens by blocks of warps that meet, as --exact needs it.
const char* refuse_tokens(const AttentionDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_cuda(d, o)) return reason;
  return d.head_dim == 256 && o.gpu.sm / 10 == 12
             ? "heads of 256 dims: a GB10 has too few registers for a token's tile"
             : nullptr;
}

const char* refuse_spans(const AttentionDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_cuda(d, o)) return reason;
  return o.exact ? "--exact: its sums depend on how a prompt is cut" : nullptr;
}

const char* refuse_sm90(const AttentionDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_spans(d, o)) return reason;
  return o.gpu.sm == 90 ? nullptr : "needs a Hopper GPU (wgmma)";
}

const char* refuse_any(const AttentionDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_cpu(o)) return reason;
  if (d.head_dim % 2 != 0) return "head dim is odd";
  return d.head_dim <= 512 ? nullptr : "heads of more than 512 dims";
}

constexpr AttentionKernel kKernels[] = {
    {"sm90_bf16_spans", refuse_sm90, NIBBLE_SM90_KERNEL(gpu::attend_spans_sm90), Layout::kRows,
     /*takes=*/kMostLeftHeads},
    {"cuda_bf16_spans", refuse_spans, NIBBLE_CUDA_KERNEL(gpu::attend_spans)},
    {"cuda_bf16_tokens", refuse_tokens, NIBBLE_CUDA_KERNEL(gpu::attend_tokens)},
    bf16_row<cpu::Isa::kAmx>("amx_bf16"),
    bf16_row<cpu::Isa::kAvx512Bf16>("avx512_bf16"),
    row<cpu::Isa::kAvx512>("avx512_float"),
    row<cpu::Isa::kAvx2>("avx2_float"),
    row<cpu::Isa::kNeon>("neon_float"),
    row<cpu::Isa::kScalar>("plain_float"),
    {"cuda_any", refuse_any, NIBBLE_CUDA_KERNEL(gpu::attend_any)},
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

void attention(Ctx& cx, const Site& site, const Tensor& att, const Tensor& q, const KvLayer& kv,
               float scale, const Step& s) {
  const auto window = static_cast<int32_t>(std::get<AttentionDesc>(site.problem).window);
  const AttentionParams params{.scale = scale, .window = window, .sinks = site.sinks};
  run_site<AttentionKernel>(cx, site, s.num_tokens, att, q, pages_of(site, kv), params, s);
  cx.left_heads.are_left = false;
  cx.wrote({att.data});
}

// Each key and value that any token sees, once; q read, att written.
int64_t bytes(const AttentionDesc& d, int64_t tokens, int64_t context, int64_t kv_bytes,
              int64_t act_bytes) {
  const int64_t keys =
      d.window > 0 ? std::min(context + tokens, d.window - 1 + tokens) : context + tokens;
  return 2 * keys * d.kv_heads * d.head_dim * kv_bytes +
         2 * tokens * d.q_heads * d.head_dim * act_bytes;
}

int64_t flops(const AttentionDesc& d, int64_t tokens, int64_t context) {
  return 4 * visible(d, tokens, context) * d.q_heads * d.head_dim;
}

namespace gpu {

int64_t scratch_bytes(const AttentionDesc& d) {
  const int64_t columns = d.kv_heads * ((d.q_heads / d.kv_heads + 7) / 8);
  return std::max(AttentionScratch(Scratch(), d.tokens, columns, d.head_dim).used_bytes,
                  AnyAttentionScratch(Scratch(), d.tokens, d.q_heads, d.head_dim).used_bytes);
}

}  // namespace gpu
}  // namespace nibble::ops
