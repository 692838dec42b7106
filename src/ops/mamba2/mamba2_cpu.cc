#include <algorithm>
#include <cmath>

#include "cpu/thread_pool.h"
#include "ops/cpu_matmul/float_kernels.h"
#include "ops/mamba2/mamba2.h"
#include "ops/scratch.h"
#include "ops/store.h"

namespace nibble::ops {
namespace {

struct MambaScratch {
  MambaScratch(Scratch s, const Mamba2Desc& d, int64_t tokens, int threads)
      : xbc(s.take<float>(tokens * d.channels())),
        gates(s.take<float>(tokens * 2 * d.heads)),
        blocks(s.take<float>(threads * block_size(d))),
        inputs(s.take<const float*>(threads * d.taps)),
        zeros(s.take<float>(d.channels())),
        used_bytes(s.used_bytes()) {}
  // Of the state of a head, and values.
  static int64_t block_size(const Mamba2Desc& d) {
    const int64_t tiles = (d.head_dim + kDeltaColumns - 1) / kDeltaColumns;
    return (tiles * d.state_dim + 1) * kDeltaColumns;
  }
  float* xbc;            // [T, channels] convolved
  float* gates;          // [T, NH, 2] decay and dt
  float* blocks;         // [threads][block_size]
  const float** inputs;  // [threads][taps]
  float* zeros;          // inputs before the start
  int64_t used_bytes;
};

// One step's problem, as its parts see it.
struct MambaRun {
  const Mamba2Desc& d;
  const Mamba2Weights& w;
  const Tensor& in;
  const RecurrentLayer& state;
  const Mamba2Kernels& kernels;
  const MambaScratch& scratch;

  const float* row(int64_t t) const { return in.as<float>() + t * d.width(); }

  // Convolves n channels of token t of a span, and keeps the last inputs.
  void convolve(const Span& span, int64_t t, int64_t channel, int64_t n, int worker) const {
    const int32_t from = state.from[span.slot];
    const float* old =
        from == RecurrentLayer::kNoState ? nullptr : state.conv.as<float>() + from * d.conv_size();
    const float** inputs = scratch.inputs + worker * d.taps;
    for (int64_t j = 0; j < d.taps; ++j) {
      const int64_t at = t - d.taps + 1 + j;
      if (at >= 0)
        inputs[j] = row(span.q_start + at) + d.inner() + channel;
      else
        inputs[j] =
            old == nullptr ? scratch.zeros : old + (d.taps - 1 + at) * d.channels() + channel;
    }
    kernels.convolve(inputs, w.conv + channel * d.taps, w.conv_bias + channel, d.taps, n,
                     scratch.xbc + (span.q_start + t) * d.channels() + channel);
    if (t + 1 != span.q_len) return;
    float* kept = state.conv.as<float>() + state.to[span.slot] * d.conv_size() + channel;
    for (int64_t j = 1; j < d.taps; ++j) std::copy_n(inputs[j], n, kept + (j - 1) * d.channels());
  }

  // A group of a token: its B and C, x and dt of its heads.
  void prepare(const Span& span, int64_t t, int64_t g, int worker) const {
    convolve(span, t, g * d.group_width(), d.group_width(), worker);
    convolve(span, t, d.b() + g * d.state_dim, d.state_dim, worker);
    convolve(span, t, d.c() + g * d.state_dim, d.state_dim, worker);
    const int64_t at = span.q_start + t;
    for (int64_t h = g * d.group_heads(); h < (g + 1) * d.group_heads(); ++h) {
      const float a = row(at)[d.dt() + h] + w.dt_bias[h];
      const float dt = std::clamp(a > 20 ? a : std::log1p(std::exp(a)), d.dt_least, d.dt_most);
      float* to = scratch.gates + (at * d.heads + h) * 2;
      to[0] = std::exp(-std::exp(w.a_log[h]) * dt), to[1] = dt;
    }
  }

  // Columns [column, column + columns) of a head's state, through all tokens of a span.
  void recur(const Span& span, int64_t h, int64_t column, int64_t columns, float* att,
             int worker) const {
    const int64_t head = h * d.state_dim * d.head_dim + column, at = h * d.head_dim + column;
    const int64_t g = h / d.group_heads();
    const int32_t from = state.from[span.slot];
    const float* states = state.state.as<float>();
    float* block = scratch.blocks + worker * MambaScratch::block_size(d);
    kernels.run(
        {.tokens = span.q_len,
         .key_dim = d.state_dim,
         .columns = columns,
         .qkv = scratch.xbc + span.q_start * d.channels(),
         .ld_qkv = d.channels(),
         .q = d.c() + g * d.state_dim,
         .k = d.b() + g * d.state_dim,
         .v = at,
         .gates = scratch.gates + (span.q_start * d.heads + h) * 2,
         .ld_gates = 2 * d.heads,
         .from = from == RecurrentLayer::kNoState ? nullptr : states + from * d.state_size() + head,
         .to = state.state.as<float>() + state.to[span.slot] * d.state_size() + head,
         .ld_state = d.head_dim,
         .past_caches = d.state_size() >= kStatePastCaches,
         .block = block + kDeltaColumns,
         .values = block,
         .out = att + span.q_start * d.inner() + at,
         .ld_out = d.inner()});
  }

  // A group of a token.
  void norm(DType activations, int64_t t, int64_t g, float* att) const {
    for (int64_t h = g * d.group_heads(); h < (g + 1) * d.group_heads(); ++h) {
      const int64_t at = h * d.head_dim;
      kernels.gate(att + t * d.inner() + at, scratch.xbc + t * d.channels() + at, w.d[h],
                   row(t) + at, d.head_dim);
    }
    const int64_t first = g * d.group_width();
    float* y = att + t * d.inner() + first;
    kernels.norm(y, w.norm + first, w.eps, d.group_width());
    if (activations == DType::kBF16)
      for (int64_t j = 0; j < d.group_width(); ++j) y[j] = stored(activations, y[j]);
  }
};

}  // namespace

int64_t scratch_bytes(const Mamba2Desc& desc, int64_t tokens, int threads) {
  return MambaScratch(Scratch(), desc, tokens, threads).used_bytes;
}

template <cpu::Isa kIsa>
void CpuMamba2<kIsa>::run(Ctx& cx, const Tensor& att, const RecurrentLayer& state, const Tensor& in,
                          const Mamba2Desc& desc, const Mamba2Weights& weights, const Step& s) {
  const MambaScratch scratch(Scratch(cx.scratch), desc, s.num_tokens, cx.pool->size());
  const MambaRun run{desc, weights, in, state, float_kernels(kIsa).mamba2, scratch};
  std::fill_n(scratch.zeros, desc.channels(), 0.f);
  float* out = att.as<float>();
  // As of delta_rule, rows may follow a span that are of none: no state is that behind them, and
  // their att is anything.
  cx.pool->parallel_for(s.num_tokens * desc.groups, 1, [&](int64_t i, int64_t end, int worker) {
    const Span* span = s.spans;
    for (; i < end; ++i) {
      const int64_t t = i / desc.groups;
      while (span + 1 < s.spans + s.num_spans && t >= span[1].q_start) ++span;
      run.prepare(*span, t - span->q_start, i % desc.groups, worker);
    }
  });
  // As in delta_rule: of long spans a task is some columns, of few tokens all of a head.
  const bool is_long = s.num_tokens > 8 * s.num_spans;
  const int64_t columns = is_long ? kDeltaColumns : desc.head_dim;
  const int64_t blocks = (desc.head_dim + columns - 1) / columns, parts = desc.heads * blocks;
  cx.pool->parallel_for(s.num_spans * parts, 1, [&](int64_t i, int64_t end, int worker) {
    for (; i < end; ++i) {
      const int64_t column = i % blocks * columns;
      run.recur(s.spans[i / parts], i % parts / blocks, column,
                std::min(columns, desc.head_dim - column), out, worker);
    }
  });
  cx.pool->parallel_for(s.num_tokens * desc.groups, 1, [&](int64_t i, int64_t end, int) {
    for (; i < end; ++i) run.norm(cx.activations, i / desc.groups, i % desc.groups, out);
  });
}

template struct CpuMamba2<cpu::Isa::kAvx512>;
template struct CpuMamba2<cpu::Isa::kAvx2>;
template struct CpuMamba2<cpu::Isa::kNeon>;
template struct CpuMamba2<cpu::Isa::kScalar>;

}  // namespace nibble::ops
