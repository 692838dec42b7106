#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/thread_pool.h"
#include "ops/cpu_matmul/float_kernels.h"
#include "ops/delta_rule/delta_rule.h"
#include "ops/scratch.h"
#include "ops/store.h"

namespace nibble::ops {
namespace {

struct DeltaScratch {
  DeltaScratch(Scratch s, const DeltaRuleDesc& d, int64_t tokens, int threads)
      : qkv(s.take<float>(tokens * d.channels())),
        gates(s.take<float>(tokens * 2 * d.value_heads)),
        blocks(s.take<float>(threads * block_size(d))),
        inputs(s.take<const float*>(threads * d.taps)),
        zeros(s.take<float>(d.channels())),
        used_bytes(s.used_bytes()) {}
  // Of the state of a head, and values.
  static int64_t block_size(const DeltaRuleDesc& d) {
    const int64_t tiles = (d.value_dim + kDeltaColumns - 1) / kDeltaColumns;
    return (tiles * d.key_dim + 1) * kDeltaColumns;
  }
  float* qkv;            // [T, channels] convolved, q and k normed
  float* gates;          // [T, HV, 2] decay and beta
  float* blocks;         // [threads][block_size]
  const float** inputs;  // [threads][taps]
  float* zeros;          // inputs before the start
  int64_t used_bytes;
};

// One step's problem, as its parts see it.
struct DeltaRun {
  const DeltaRuleDesc& d;
  const DeltaRuleWeights& w;
  const DeltaRuleIn& in;
  const RecurrentLayer& state;
  const Step& s;
  const FloatKernels& kernels;
  const DeltaScratch& scratch;

  int64_t ratio() const { return d.value_heads / d.key_heads; }
  int64_t state_size() const { return d.key_dim * d.value_width(); }
  int64_t conv_size() const { return (d.taps - 1) * d.channels(); }
  const float* row(int64_t t) const { return in.qkvz.as<float>() + t * d.width(); }

  // Convolves n channels of token t of a span, and keeps the last inputs.
  void convolve(const Span& span, int64_t t, int64_t channel, int64_t place, int64_t n,
                int worker) const {
    const int32_t from = state.from[span.slot];
    const float* old =
        from == RecurrentLayer::kNoState ? nullptr : state.conv.as<float>() + from * conv_size();
    const float** inputs = scratch.inputs + worker * d.taps;
    for (int64_t j = 0; j < d.taps; ++j) {
      const int64_t at = t - d.taps + 1 + j;
      if (at >= 0)
        inputs[j] = row(span.q_start + at) + place;
      else
        inputs[j] =
            old == nullptr ? scratch.zeros : old + (d.taps - 1 + at) * d.channels() + channel;
    }
    kernels.delta.convolve(inputs, w.conv + channel * d.taps, d.taps, n,
                           scratch.qkv + (span.q_start + t) * d.channels() + channel);
    if (t + 1 != span.q_len) return;
    float* kept = state.conv.as<float>() + state.to[span.slot] * conv_size() + channel;
    for (int64_t j = 1; j < d.taps; ++j) std::copy_n(inputs[j], n, kept + (j - 1) * d.channels());
  }

  // A key head of a token: its q and k, the values and gates of its value heads.
  void prepare(const Span& span, int64_t t, int64_t g, int worker) const {
    const DeltaPlaces at = delta_places(d, g);
    const int64_t q = g * d.key_dim, k = d.key_width() + q;
    convolve(span, t, q, at.q, d.key_dim, worker);
    convolve(span, t, k, at.k, d.key_dim, worker);
    convolve(span, t, 2 * d.key_width() + g * ratio() * d.value_dim, at.v, ratio() * d.value_dim,
             worker);
    float* qkv = scratch.qkv + (span.q_start + t) * d.channels();
    kernels.delta.l2_norm(qkv + q, d.key_dim, 1 / std::sqrt(static_cast<float>(d.key_dim)));
    kernels.delta.l2_norm(qkv + k, d.key_dim, 1);
    const DeltaGates all = gates_of(in, d);
    const float* gates = all.data + (span.q_start + t) * all.stride;
    for (int64_t i = 0; i < ratio(); ++i) {
      const int64_t h = g * ratio() + i;
      const float a = gates[at.a + i] + w.dt_bias[h];
      const float dt = a > 20 ? a : std::log1p(std::exp(a));
      float* to = scratch.gates + ((span.q_start + t) * d.value_heads + h) * 2;
      to[0] = std::exp(-std::exp(w.a_log[h]) * dt);
      to[1] = 1 / (1 + std::exp(-gates[at.b + i]));
    }
  }

  // Columns [column, column + columns) of a value head's state, through all tokens of a span.
  void recur(const Span& span, int64_t h, int64_t column, int64_t columns, float* att,
             int worker) const {
    const int64_t head = h * d.key_dim * d.value_dim + column;
    const int32_t from = state.from[span.slot];
    const float* states = state.state.as<float>();
    float* block = scratch.blocks + worker * DeltaScratch::block_size(d);
    const int64_t g = h / ratio(), width = d.value_width(), at = h * d.value_dim + column;
    kernels.delta.run(
        {.tokens = span.q_len,
         .key_dim = d.key_dim,
         .columns = columns,
         .qkv = scratch.qkv + span.q_start * d.channels(),
         .ld_qkv = d.channels(),
         .q = g * d.key_dim,
         .k = d.key_width() + g * d.key_dim,
         .v = 2 * d.key_width() + at,
         .gates = scratch.gates + (span.q_start * d.value_heads + h) * 2,
         .ld_gates = 2 * d.value_heads,
         .from = from == RecurrentLayer::kNoState ? nullptr : states + from * state_size() + head,
         .to = state.state.as<float>() + state.to[span.slot] * state_size() + head,
         .ld_state = d.value_dim,
         .past_caches = state_size() >= kStatePastCaches,
         .block = block + kDeltaColumns,
         .values = block,
         .out = att + span.q_start * width + at,
         .ld_out = width});
  }

  void norm_gated(DType activations, int64_t t, int64_t h, float* att) const {
    const float* z = row(t) + delta_places(d, h / ratio()).z + h % ratio() * d.value_dim;
    float* o = att + t * d.value_width() + h * d.value_dim;
    kernels.delta.norm_gated(o, z, w.norm, w.eps, d.value_dim);
    if (activations == DType::kBF16)
      for (int64_t j = 0; j < d.value_dim; ++j) o[j] = stored(activations, o[j]);
  }
};

}  // namespace

int64_t scratch_bytes(const DeltaRuleDesc& desc, int64_t tokens, int threads) {
  return DeltaScratch(Scratch(), desc, tokens, threads).used_bytes;
}

template <cpu::Isa kIsa>
void CpuDeltaRule<kIsa>::run(Ctx& cx, const Tensor& att, const RecurrentLayer& state,
                             const DeltaRuleIn& in, const DeltaRuleDesc& desc,
                             const DeltaRuleWeights& weights, const Step& s) {
  const DeltaScratch scratch(Scratch(cx.scratch), desc, s.num_tokens, cx.pool->size());
  const DeltaRun run{desc, weights, in, state, s, float_kernels(kIsa), scratch};
  std::fill_n(scratch.zeros, desc.channels(), 0.f);
  float* out = att.as<float>();
  cx.pool->parallel_for(s.num_tokens * desc.key_heads, 1, [&](int64_t i, int64_t end, int worker) {
    const Span* span = s.spans;
    for (; i < end; ++i) {
      const int64_t t = i / desc.key_heads;
      while (span + 1 < s.spans + s.num_spans && t >= span[1].q_start) ++span;
      run.prepare(*span, t - span->q_start, i % desc.key_heads, worker);
    }
  });
  // Of long spans a task is some columns, so that one prompt has work for more threads; of few
  // tokens all of a head, whose state is then read in order.
  const bool is_long = s.num_tokens > 8 * s.num_spans;
  const int64_t columns = is_long ? kDeltaColumns : desc.value_dim;
  const int64_t blocks = (desc.value_dim + columns - 1) / columns;
  const int64_t parts = desc.value_heads * blocks;
  cx.pool->parallel_for(s.num_spans * parts, 1, [&](int64_t i, int64_t end, int worker) {
    for (; i < end; ++i) {
      const int64_t column = i % blocks * columns;
      run.recur(s.spans[i / parts], i % parts / blocks, column,
                std::min(columns, desc.value_dim - column), out, worker);
    }
  });
  cx.pool->parallel_for(s.num_tokens * desc.value_heads, 1, [&](int64_t i, int64_t end, int) {
    for (; i < end; ++i)
      run.norm_gated(cx.activations, i / desc.value_heads, i % desc.value_heads, out);
  });
}

template struct CpuDeltaRule<cpu::Isa::kAvx512>;
template struct CpuDeltaRule<cpu::Isa::kAvx2>;
template struct CpuDeltaRule<cpu::Isa::kNeon>;
template struct CpuDeltaRule<cpu::Isa::kScalar>;

}  // namespace nibble::ops
