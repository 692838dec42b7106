// mamba2: a Mamba2 layer between its two projections: short causal convolution, recurrence, gate,
// norm of groups of channels. Source: Dao and Gu, "Transformers are SSMs" (arXiv 2405.21060), as
// vLLM computes NemotronH's. For a token and a head, whose group's B and C serve NH / G of them:
//   x, B, C = silu(bias + sum over taps of conv * what they were), zeros before the start
//   dt = clamp(softplus(dt + dt_bias), dt_least, dt_most);  decay = exp(-exp(a_log) dt)
//   S = decay S + B (dt x)^T;  y = S^T C + D x;  t = y * silu(z)
//   att = norm * t / sqrt(mean of t^2 over the group's channels + eps)
// Token after token, in prompts too: one order of sums whatever the chunks, so that a state never
// depends on how a text was cut. But for mamba2_chunks, which --exact refuses.
#pragma once

#include <limits>

#include "ops/ctx.h"
#include "ops/step.h"

namespace nibble::ops {

struct Mamba2Desc {
  int64_t heads = 0;      // NH
  int64_t groups = 0;     // G, a divisor of NH
  int64_t head_dim = 0;   // P
  int64_t state_dim = 0;  // N
  int64_t taps = 0;       // of the convolution, the newest input included
  float dt_least = 0, dt_most = std::numeric_limits<float>::infinity();
  int64_t tokens = 1;  // the most of a step that it is to serve
  bool operator==(const Mamba2Desc&) const = default;

  constexpr int64_t inner() const { return heads * head_dim; }
  constexpr int64_t group_heads() const { return heads / groups; }
  constexpr int64_t group_width() const { return group_heads() * head_dim; }
  // Of the convolution: x by heads, B by groups, C by groups.
  constexpr int64_t channels() const { return inner() + 2 * groups * state_dim; }
  constexpr int64_t b() const { return inner(); }
  constexpr int64_t c() const { return inner() + groups * state_dim; }
  // Of a token's inputs: z, channels, dt of each head.
  constexpr int64_t width() const { return inner() + channels() + heads; }
  constexpr int64_t dt() const { return inner() + channels(); }
  constexpr int64_t state_size() const { return heads * state_dim * head_dim; }
  constexpr int64_t conv_size() const { return (taps - 1) * channels(); }
};

// Float32, as small as they are.
struct Mamba2Weights {
  const float* conv = nullptr;       // [channels, taps], the newest input last
  const float* conv_bias = nullptr;  // [channels]
  const float* a_log = nullptr;      // [NH]
  const float* d = nullptr;          // [NH]
  const float* dt_bias = nullptr;    // [NH]
  const float* norm = nullptr;       // [NH P]
  float eps = 0;
};

// att [T, NH P] f32, out; state: of the layer, [slots, NH, N, P], whose slots `from` are read and
// `to` written; in [T, width] f32.
using Mamba2Fn = void(Ctx& cx, const Tensor& att, const RecurrentLayer& state, const Tensor& in,
                      const Mamba2Desc& desc, const Mamba2Weights& weights, const Step& s);
using Mamba2Kernel = Kernel<Mamba2Desc, Mamba2Fn>;

// site.mamba.
void mamba2(Ctx& cx, const Site& site, const Tensor& att, const RecurrentLayer& state,
            const Tensor& in, const Step& s);
std::span<const Mamba2Kernel> mamba2_kernels();

// Of `streams` sequences of `tokens` tokens each; an element of att has act_bytes.
int64_t bytes(const Mamba2Desc& desc, int64_t streams, int64_t tokens, int64_t act_bytes = 4);
int64_t flops(const Mamba2Desc& desc, int64_t tokens);

int64_t scratch_bytes(const Mamba2Desc& desc, int64_t tokens, int threads);

// The float path on CPUs; defined for kAvx512, kAvx2, kNeon and kScalar.
template <cpu::Isa kIsa>
struct CpuMamba2 {
  static Mamba2Fn run;
};
namespace gpu {
Mamba2Fn mamba2_decode;  // few tokens of each sequence
Mamba2Fn mamba2_ring;    // one token of each; else one of those beside it
Mamba2Fn mamba2_chunks;  // prompts
Mamba2Fn mamba2_any;

// The most tokens of a step, and heads of a group, that mamba2_decode is for.
inline constexpr int64_t kMambaDecodeTokens = 8, kMambaDecodeHeads = 8;
// Of mamba2_chunks: tokens of a chunk, of the longest span that goes token by token, the most heads
// of a group; what is kept of each chunk for a group and for a head.
inline constexpr int kMambaChunk = 64, kMambaFewTokens = 31, kMambaMostHeads = 32;
inline constexpr int64_t kMambaGroupBytes = 34816, kMambaHeadBytes = 10256;
constexpr int64_t most_mamba_chunks(int64_t tokens) { return tokens / (kMambaFewTokens + 1); }

// Working memory for steps of up to desc.tokens tokens.
int64_t scratch_bytes(const Mamba2Desc& desc);
}  // namespace gpu
namespace ref {
Mamba2Fn mamba2;
}
}  // namespace nibble::ops
