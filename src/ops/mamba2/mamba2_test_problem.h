// For tests of mamba2: random inputs, weights and states, some sequences in a step.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/mamba2/mamba2.h"
#include "ops/test_problem.h"

namespace nibble::ops {

// A sequence's tokens in a step; those before it left a state.
struct MambaSpan {
  int32_t tokens;
  bool has_state;
};

struct MambaProblem {
  MambaProblem(Random& random, const Mamba2Desc& d, const std::vector<MambaSpan>& sequences,
               float eps = 1e-5f)
      : desc(d),
        conv(random.normals(d.channels() * d.taps, 0.5f)),
        conv_bias(random.normals(d.channels(), 0.1f)),
        a_log(d.heads),
        skip(random.normals(d.heads)),
        dt_bias(random.normals(d.heads, 2)),
        norm(random.normals(d.inner(), 0.2f)),
        states(random.normals(2 * std::ssize(sequences) * d.state_size())),
        convs(random.normals(2 * std::ssize(sequences) * d.conv_size())) {
    for (float& a : a_log) a = std::log(0.05f + 0.01f * static_cast<float>(random.below(400)));
    for (float& b : dt_bias) b -= 3.5f;
    for (float& w : norm) w += 1;
    weights = {conv.data(),    conv_bias.data(), a_log.data(), skip.data(),
               dt_bias.data(), norm.data(),      eps};
    int32_t tokens = 0;
    for (const MambaSpan& s : sequences) {
      const auto slot = static_cast<int32_t>(spans.size());
      spans.push_back({tokens, s.tokens, s.has_state ? 7 : 0, slot});
      from.push_back(s.has_state ? 2 * slot : RecurrentLayer::kNoState);
      to.push_back(2 * slot + 1);
      tokens += s.tokens;
    }
    inputs = random.normals(tokens * d.width());
    att.resize(tokens * d.inner());
    desc.tokens = tokens;
    step = {.num_tokens = tokens,
            .num_spans = static_cast<int32_t>(spans.size()),
            .spans = spans.data()};
  }
  MambaProblem(const MambaProblem&) = delete;

  RecurrentLayer layer() {
    const auto slots = static_cast<int64_t>(2 * spans.size());
    return {.state = make_tensor(states.data(), DType::kF32,
                                 {slots, desc.heads, desc.state_dim, desc.head_dim}),
            .conv = make_tensor(convs.data(), DType::kF32, {slots, desc.taps - 1, desc.channels()}),
            .from = from.data(),
            .to = to.data()};
  }
  // Rows of `tokens` tokens from `first` on.
  Tensor in(int64_t first, int64_t tokens) {
    return make_tensor(inputs.data() + first * desc.width(), DType::kF32, {tokens, desc.width()});
  }
  Tensor in() { return in(0, desc.tokens); }
  Tensor out(int64_t first, int64_t tokens) {
    return make_tensor(att.data() + first * desc.inner(), DType::kF32, {tokens, desc.inner()});
  }
  Tensor out() { return out(0, desc.tokens); }
  void run(Ctx& cx, Mamba2Fn* kernel) { kernel(cx, out(), layer(), in(), desc, weights, step); }
  // What a kernel or the twin leaves for one sequence.
  const float* left(int32_t slot) const { return states.data() + to[slot] * desc.state_size(); }
  const float* kept(int32_t slot) const { return convs.data() + to[slot] * desc.conv_size(); }

  Mamba2Desc desc;
  std::vector<float> conv, conv_bias, a_log, skip, dt_bias, norm, states, convs, inputs, att;
  std::vector<int32_t> from, to;
  std::vector<Span> spans;
  Mamba2Weights weights;
  Step step;
};

// How far float32 may be off.
//
// The inputs of the recurrence are sums of `taps` products and activations of about a dozen
// roundings: 32 eps of each. An element of a state is decayed (by no more than one, off by the
// errors of its exponent x, of which x exp(-x) < 1/2: 16 eps) and gets B dt x, off by 80 eps of
// itself. What a token adds to the error is not multiplied by those behind it: after T tokens
// T * 128 eps of the largest element or term, `size`.
//   y: a sum over N of C times those, off by that and dot_error(N) of the magnitudes.
// The gate and the norm: with an eps of one in it y's error is moved by a factor of at most
// 1 + sqrt(channels of a group), times gates and weights.
// That is far more than most outputs are off by. Errors of single roundings add up like a walk: of
// all outputs together the root mean square is off by `att_rms` of itself at most.
struct MambaBounds {
  double state, att, att_rms;
};
inline MambaBounds mamba_bounds(const MambaProblem& p) {
  const auto most_of = [](const std::vector<float>& all, double most) {
    for (const float x : all) most = std::max(most, std::fabs(double{x}));
    return most;
  };
  int32_t longest = 0;
  for (const Span& s : p.spans) longest = std::max(longest, s.q_len);
  // Convolved inputs stay below 8 here, dt below 4.
  const double input = 8, size = most_of(p.states, input * input * 4);
  const double state = (longest + 1) * 128 * kEps * size;
  const double y = static_cast<double>(p.desc.state_dim) *
                   (state + dot_error(p.desc.state_dim) * size) * input / 4;
  return {state,
          y * most_of(p.inputs, 1) * most_of(p.norm, 1) *
              (1 + std::sqrt(static_cast<double>(p.desc.group_width()))),
          static_cast<double>(longest + p.desc.state_dim + 64) *
              std::sqrt(static_cast<double>(p.desc.state_dim)) * kEps};
}

// The root mean square of what `got` is off by, over that of `want`.
inline double rms_off(const std::vector<float>& got, const std::vector<float>& want) {
  double off = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    off += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    size += double{want[i]} * want[i];
  }
  return std::sqrt(off / size);
}

inline const std::vector<Mamba2Desc>& mamba_descs() {
  static const std::vector<Mamba2Desc> kDescs = {{6, 2, 8, 16, 4},
                                                 {8, 1, 64, 128, 4},
                                                 {3, 3, 20, 7, 2},
                                                 {20, 2, 33, 200, 3},
                                                 {4, 2, 130, 48, 4, 1e-3f, 0.1f}};
  return kDescs;
}

}  // namespace nibble::ops
