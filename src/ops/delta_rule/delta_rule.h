// delta_rule: a gated delta-net layer between its two projections: short causal convolution, gates,
// recurrence, gated norm of each head. Source: Yang et al., "Gated Delta Networks" (arXiv
// 2412.06464), as transformers' Qwen3-Next computes it. For a token and a value head, whose key
// head serves HV / HK of them:
//   q, k, v = silu(sum over taps of conv * what they were), zeros before the start
//   q = q / sqrt(|q|^2 + 1e-6) / sqrt(DK);  k = k / sqrt(|k|^2 + 1e-6)
//   beta = sigmoid(b);  decay = exp(-exp(a_log) softplus(a + dt_bias))
//   S = decay S;  S = S + k (beta (v - S^T k))^T;  o = S^T q
//   att = norm * o / sqrt(mean(o^2) + eps) * silu(z)
// Token after token: one order of sums whatever the chunks, so that a state never depends on how a
// text was cut. Rows for prompts that take 64 tokens at a time are refused under --exact.
#pragma once

#include "ops/ctx.h"
#include "ops/step.h"

namespace nibble::ops {

// Where a token's inputs lie. kByKeyHead: for each key head its q, k, and v and z of its value
// heads, and in `gates` their b, then a. kInOrder: all of q, k, v, z, and all of b, a.
enum class DeltaInputs : uint8_t { kByKeyHead, kInOrder };

struct DeltaRuleDesc {
  int64_t key_heads = 0;    // HK
  int64_t value_heads = 0;  // HV, a multiple of HK
  int64_t key_dim = 0;      // DK
  int64_t value_dim = 0;    // DV
  int64_t taps = 0;         // of the convolution, the newest input included
  DeltaInputs inputs = DeltaInputs::kByKeyHead;
  int64_t tokens = 1;   // the most of a step that it is to serve
  bool joined = false;  // the gates lie behind all else in the rows of `qkvz`
  bool operator==(const DeltaRuleDesc&) const = default;

  constexpr int64_t key_width() const { return key_heads * key_dim; }
  constexpr int64_t value_width() const { return value_heads * value_dim; }
  constexpr int64_t channels() const {
    return 2 * key_width() + value_width();
  }                                                                // q, k, v by heads
  constexpr int64_t num_gates() const { return 2 * value_heads; }  // of a token
  constexpr int64_t width() const {                                // of `qkvz`
    return channels() + value_width() + (joined ? num_gates() : 0);
  }
};

// Float32, as small as they are.
struct DeltaRuleWeights {
  const float* conv = nullptr;     // [channels, taps], the newest input last
  const float* a_log = nullptr;    // [HV]
  const float* dt_bias = nullptr;  // [HV]
  const float* norm = nullptr;     // [DV]
  float eps = 0;
};

struct DeltaRuleIn {
  Tensor qkvz;   // [T, 2 HK DK + 2 HV DV] f32, joined: and 2 HV
  Tensor gates;  // [T, 2 HV] f32; joined: none
};
// The gates, a token's `stride` behind those of the one before.
struct DeltaGates {
  const float* data;
  int64_t stride;
};
inline DeltaGates gates_of(const DeltaRuleIn& in, const DeltaRuleDesc& d) {
  if (!d.joined) return {in.gates.as<float>(), d.num_gates()};
  return {in.qkvz.as<float>() + d.width() - d.num_gates(), d.width()};
}

// att [T, HV DV] f32, out; state: of the layer, whose slots `from` are read and `to` written. Rows
// may follow a span that are of none: no state is that behind them, and their att is anything.
using DeltaRuleFn = void(Ctx& cx, const Tensor& att, const RecurrentLayer& state,
                         const DeltaRuleIn& in, const DeltaRuleDesc& desc,
                         const DeltaRuleWeights& weights, const Step& s);
using DeltaRuleKernel = Kernel<DeltaRuleDesc, DeltaRuleFn>;

// site.delta.
void delta_rule(Ctx& cx, const Site& site, const Tensor& att, const RecurrentLayer& state,
                const DeltaRuleIn& in, const Step& s);
std::span<const DeltaRuleKernel> delta_rule_kernels();

// Of `streams` sequences of `tokens` tokens each; an element of att has act_bytes.
int64_t bytes(const DeltaRuleDesc& desc, int64_t streams, int64_t tokens, int64_t act_bytes = 4);
int64_t flops(const DeltaRuleDesc& desc, int64_t tokens);

int64_t scratch_bytes(const DeltaRuleDesc& desc, int64_t tokens, int threads);

// Where one token's row of `qkvz` and of `gates` has what a value head reads. Key heads' v and z
// lie together, as do their b and a.
struct DeltaPlaces {
  int64_t q, k, v, z, b, a;
};
constexpr DeltaPlaces delta_places(const DeltaRuleDesc& d, int64_t key_head) {
  const int64_t ratio = d.value_heads / d.key_heads, values = ratio * d.value_dim;
  if (d.inputs == DeltaInputs::kByKeyHead) {
    const int64_t at = key_head * (2 * d.key_dim + 2 * values), gates = key_head * 2 * ratio;
    return {.q = at,
            .k = at + d.key_dim,
            .v = at + 2 * d.key_dim,
            .z = at + 2 * d.key_dim + values,
            .b = gates,
            .a = gates + ratio};
  }
  return {.q = key_head * d.key_dim,
          .k = d.key_width() + key_head * d.key_dim,
          .v = 2 * d.key_width() + key_head * values,
          .z = d.channels() + key_head * values,
          .b = key_head * ratio,
          .a = d.value_heads + key_head * ratio};
}

// The float path on CPUs; defined for kAvx512, kAvx2, kNeon and kScalar.
template <cpu::Isa kIsa>
struct CpuDeltaRule {
  static DeltaRuleFn run;
};
namespace gpu {
DeltaRuleFn delta_rule_decode;  // few tokens of each sequence
DeltaRuleFn delta_rule_chunks;  // prompts
DeltaRuleFn delta_rule_any;

// Of delta_rule_chunks: tokens of a chunk, and of the longest span that goes token by token.
inline constexpr int kDeltaChunk = 64, kDeltaFewTokens = 16;
// What is kept of each chunk for a key head and for a value head.
inline constexpr int64_t kDeltaKeyBytes = 34816, kDeltaHeadBytes = 43568;
constexpr int64_t most_delta_chunks(int64_t tokens) { return tokens / (kDeltaFewTokens + 1); }

// Working memory for steps of up to desc.tokens tokens.
int64_t scratch_bytes(const DeltaRuleDesc& desc);
}  // namespace gpu
namespace ref {
DeltaRuleFn delta_rule;
}
}  // namespace nibble::ops
