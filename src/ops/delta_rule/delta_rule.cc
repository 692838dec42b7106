#include "ops/delta_rule/delta_rule.h"

#include <algorithm>

#include "ops/refuse.h"
#include "ops/scratch.h"
#include "ops/site.h"

namespace nibble::ops {
namespace {

template <cpu::Isa kIsa>
constexpr DeltaRuleKernel row(const char* name) {
  return {name, [](const DeltaRuleDesc&, const KernelOptions& o) { return refuse_isa(kIsa, o); },
          CpuDeltaRule<kIsa>::run};
}

const char* refuse_any(const DeltaRuleDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_cpu(o)) return reason;
  if (d.taps > 8) return "more than 8 taps";
  if (d.value_heads > 128 * d.key_heads) return "more than 128 value heads to a key head";
  return d.key_dim <= 256 ? nullptr : "key heads of more than 256 dims";
}

// Inputs come in pieces of 16 bytes.
bool has_fast_heads(const DeltaRuleDesc& d) {
  return d.key_dim == 128 && d.value_dim == 128 && d.taps == 4 && d.width() % 4 == 0;
}

constexpr int64_t kDecodeTokens = 8;
const char* refuse_decode(const DeltaRuleDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_any(d, o)) return reason;
  if (!has_fast_heads(d)) return "not heads of 128 dims and 4 taps";
  return d.tokens <= kDecodeTokens || o.any_size ? nullptr : "more than 8 tokens";
}

const char* refuse_chunks(const DeltaRuleDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_any(d, o)) return reason;
  if (o.exact) return "--exact: a state would depend on how its text was cut";
  if (!has_fast_heads(d)) return "not heads of 128 dims and 4 taps";
  return nullptr;
}

// The same kernels where a step is a few tokens of each sequence; cuda_any's, whose bits are
// theirs, for prompts.
const char* refuse_decode_or_any(const DeltaRuleDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_any(d, o)) return reason;
  if (!has_fast_heads(d)) return "not heads of 128 dims and 4 taps";
  return o.exact ? nullptr : "chunks are faster, without --exact";
}

constexpr DeltaRuleKernel kKernels[] = {
    row<cpu::Isa::kAvx512>("avx512_float"),
    row<cpu::Isa::kAvx2>("avx2_float"),
    row<cpu::Isa::kNeon>("neon_float"),
    row<cpu::Isa::kScalar>("plain_any"),
    {"cuda_decode", refuse_decode, NIBBLE_CUDA_KERNEL(gpu::delta_rule_decode)},
    {"cuda_chunks", refuse_chunks, NIBBLE_CUDA_KERNEL(gpu::delta_rule_chunks)},
    {"cuda_decode_or_any", refuse_decode_or_any, NIBBLE_CUDA_KERNEL(gpu::delta_rule_decode)},
    {"cuda_any", refuse_any, NIBBLE_CUDA_KERNEL(gpu::delta_rule_any)},
    {"ref", [](const DeltaRuleDesc&, const KernelOptions& o) { return refuse_ref(o); },
     ref::delta_rule},
};

}  // namespace

std::span<const DeltaRuleKernel> delta_rule_kernels() { return kKernels; }

void delta_rule(Ctx& cx, const Site& site, const Tensor& att, const RecurrentLayer& state,
                const DeltaRuleIn& in, const Step& s) {
  run_site<DeltaRuleKernel>(cx, site, s.num_tokens, att, state, in,
                            std::get<DeltaRuleDesc>(site.problem), site.delta, s);
  cx.wrote({att.data, state.state.data, state.conv.data});
}

// States read and written, and what passes through.
int64_t bytes(const DeltaRuleDesc& d, int64_t streams, int64_t tokens, int64_t act_bytes) {
  const int64_t state = d.key_dim * d.value_width() + (d.taps - 1) * d.channels();
  return streams * (8 * state + tokens * (4 * (d.channels() + d.value_width() + d.num_gates()) +
                                          act_bytes * d.value_width())) +
         4 * d.taps * d.channels();
}

// Decayed, read, written and queried.
int64_t flops(const DeltaRuleDesc& d, int64_t tokens) {
  return tokens * (7 * d.key_dim * d.value_width() + 2 * d.taps * d.channels());
}

int64_t gpu::scratch_bytes(const DeltaRuleDesc& d) {
  Scratch any;
  any.take<float>(d.tokens * 2 * d.value_heads);  // gates
  Scratch chunks = any;
  any.take<float>(d.tokens *
                  d.channels());  // inputs convolved, with outputs in the place of values
  if (!has_fast_heads(d)) return any.used_bytes();
  chunks.take<uint16_t>(d.tokens * d.channels());    // inputs convolved
  chunks.take<float>(d.tokens * d.value_heads);      // powers
  chunks.take<float>(d.tokens * d.value_heads * 4);  // of o, by a block each
  const int64_t most = most_delta_chunks(d.tokens);
  chunks.take<std::byte>(most * d.key_heads * kDeltaKeyBytes);
  chunks.take<std::byte>(most * d.value_heads * kDeltaHeadBytes);
  return std::max(any.used_bytes(), chunks.used_bytes());
}

}  // namespace nibble::ops
