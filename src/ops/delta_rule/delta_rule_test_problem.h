// For tests of delta_rule: random inputs, weights and states, some sequences in a step.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/delta_rule/delta_rule.h"
#include "ops/test_problem.h"

namespace nibble::ops {

// A sequence's tokens in a step; those before it left a state.
struct DeltaSpan {
  int32_t tokens;
  bool has_state;
};

struct DeltaProblem {
  DeltaProblem(Random& random, const DeltaRuleDesc& d, const std::vector<DeltaSpan>& sequences,
               float eps = 1e-6f)
      : desc(d),
        conv(random.normals(d.channels() * d.taps, 0.5f)),
        a_log(d.value_heads),
        dt_bias(random.normals(d.value_heads, 2)),
        norm(random.normals(d.value_dim, 0.2f)),
        states(random.normals(2 * std::ssize(sequences) * state_size())),
        convs(random.normals(2 * std::ssize(sequences) * conv_size())) {
    for (float& a : a_log) a = std::log(0.05f + 0.01f * static_cast<float>(random.below(400)));
    for (float& b : dt_bias) b -= 3.5f;
    for (float& w : norm) w += 1;
    weights = {conv.data(), a_log.data(), dt_bias.data(), norm.data(), eps};
    int32_t tokens = 0;
    for (const DeltaSpan& s : sequences) {
      const auto slot = static_cast<int32_t>(spans.size());
      spans.push_back({tokens, s.tokens, s.has_state ? 7 : 0, slot});
      from.push_back(s.has_state ? 2 * slot : RecurrentLayer::kNoState);
      to.push_back(2 * slot + 1);
      tokens += s.tokens;
    }
    qkvz = random.normals(tokens * d.width());
    gates = random.normals(tokens * 2 * d.value_heads);
    att.resize(tokens * d.value_width());
    desc.tokens = tokens;
    step = {.num_tokens = tokens,
            .num_spans = static_cast<int32_t>(spans.size()),
            .spans = spans.data()};
  }
  DeltaProblem(const DeltaProblem&) = delete;

  int64_t state_size() const { return desc.key_dim * desc.value_width(); }
  int64_t conv_size() const { return (desc.taps - 1) * desc.channels(); }
  RecurrentLayer layer() {
    const auto slots = static_cast<int64_t>(2 * spans.size());
    return {.state = make_tensor(states.data(), DType::kF32,
                                 {slots, desc.value_heads, desc.key_dim, desc.value_dim}),
            .conv = make_tensor(convs.data(), DType::kF32, {slots, desc.taps - 1, desc.channels()}),
            .from = from.data(),
            .to = to.data()};
  }
  DeltaRuleIn in() {  // joined: with gates that nobody reads
    return {make_tensor(qkvz.data(), DType::kF32, {desc.tokens, desc.width()}),
            make_tensor(gates.data(), DType::kF32, {desc.tokens, desc.num_gates()})};
  }
  Tensor out() { return make_tensor(att.data(), DType::kF32, {desc.tokens, desc.value_width()}); }
  void run(Ctx& cx, DeltaRuleFn* kernel) { kernel(cx, out(), layer(), in(), desc, weights, step); }
  // What a kernel or the twin leaves for one sequence.
  const float* left(int32_t slot) const { return states.data() + to[slot] * state_size(); }
  const float* kept(int32_t slot) const { return convs.data() + to[slot] * conv_size(); }

  DeltaRuleDesc desc;
  std::vector<float> conv, a_log, dt_bias, norm, states, convs, qkvz, gates, att;
  std::vector<int32_t> from, to;
  std::vector<Span> spans;
  DeltaRuleWeights weights;
  Step step;
};

// How far float32 may be off.
//
// The inputs of the rule. A value is a sum of `taps` products and an activation of about a dozen
// roundings, of numbers that stay below 16 here: 32 eps of 16 in all; q and k are of length one and
// 1 / sqrt(DK): as a whole, by the norm of x, off by as many eps and those of a sum of DK squares.
//
// The state. Decay and write are contractions of a column: |1 - beta k k^T| <= 1. So what a token
// adds to a column's error is not multiplied by those behind it: two roundings of each element, a
// sum over DK of terms whose magnitudes sum to no more than the column's length (|k| = 1), and what
// the errors of k, v, beta and decay (expf of a product: its argument's error times itself, below
// 16 eps) move. With `size` for the largest length of a column and of values:
//   state: T (dot_error(DK) + 64 eps) size;  o: that over sqrt(DK), and a sum over DK more.
//
// The norm. With an eps of one in it, 1 / sqrt(mean(o^2) + 1) is at most one and moves o's error
// by a factor below 1 + sqrt(DV).
struct DeltaBounds {
  double state, att;
};
inline DeltaBounds delta_bounds(const DeltaProblem& p, double size) {
  int32_t longest = 0;
  for (const Span& s : p.spans) longest = std::max(longest, s.q_len);
  const double each = dot_error(p.desc.key_dim) + 64 * kEps;
  const double state = (longest + 1) * each * size;
  double gate = 0;  // the largest factor behind the norm
  for (const float w : p.norm) gate = std::max(gate, std::fabs(double{w}));
  for (const float z : p.qkvz) gate = std::max(gate, std::fabs(double{z}));
  return {state, 2 * state / std::sqrt(static_cast<double>(p.desc.key_dim)) * gate * gate *
                     (1 + std::sqrt(static_cast<double>(p.desc.value_dim)))};
}

// The largest length of a column that a problem's states begin or end with, and of its values,
// which the convolution makes from up to `taps` inputs.
inline double delta_size(const DeltaProblem& p) {
  double most = 16;
  const int64_t stride = p.desc.value_dim, heads = std::ssize(p.states) / stride / p.desc.key_dim;
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t j = 0; j < stride; ++j) {
      double squares = 0;
      for (int64_t i = 0; i < p.desc.key_dim; ++i)
        squares += std::pow(p.states[(h * p.desc.key_dim + i) * stride + j], 2);
      most = std::max(most, std::sqrt(squares));
    }
  return most;
}

inline const std::vector<DeltaRuleDesc>& delta_descs() {
  using enum DeltaInputs;
  static const std::vector<DeltaRuleDesc> kDescs = {
      {2, 4, 16, 24, 4, kByKeyHead},
      {2, 4, 16, 24, 4, kInOrder},
      {1, 3, 128, 128, 4, kByKeyHead},
      {3, 3, 20, 7, 2, kInOrder},
      {1, 4, 33, 65, 3, kByKeyHead},
      {2, 2, 200, 130, 4, kInOrder},
      {.key_heads = 2, .value_heads = 4, .key_dim = 16, .value_dim = 24, .taps = 4, .joined = true},
      {.key_heads = 1,
       .value_heads = 2,
       .key_dim = 128,
       .value_dim = 128,
       .taps = 4,
       .inputs = kInOrder,
       .joined = true}};
  return kDescs;
}

}  // namespace nibble::ops
