#include <cmath>
#include <vector>

#include "ops/delta_rule/delta_rule.h"
#include "ops/store.h"

namespace nibble::ops::ref {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

// One sequence's part of a step, in double; states are rounded to float32 when it ends.
struct Sequence {
  const DeltaRuleDesc& d;
  const DeltaRuleWeights& w;
  const DeltaRuleIn& in;
  const Span& span;
  std::vector<double> state;  // [HV, DK, DV]
  std::vector<double> conv;   // [taps - 1, channels] inputs before the step

  // Input of a channel of the convolution at token t of the sequence's part; t may be negative.
  double input(int64_t t, int64_t channel, int64_t place) const {
    if (t < 0) return conv[(d.taps - 1 + t) * d.channels() + channel];
    return in.qkvz.as<float>()[(span.q_start + t) * d.width() + place];
  }
  // n channels from `channel` on, which lie at `place`, convolved.
  std::vector<double> convolved(int64_t t, int64_t channel, int64_t place, int64_t n) const {
    std::vector<double> out(n);
    for (int64_t i = 0; i < n; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < d.taps; ++j)
        sum +=
            w.conv[(channel + i) * d.taps + j] * input(t - d.taps + 1 + j, channel + i, place + i);
      out[i] = sum * sigmoid(sum);
    }
    return out;
  }

  // What value head h leaves of token t, before the norm.
  std::vector<double> step(int64_t t, int64_t h) {
    const int64_t ratio = d.value_heads / d.key_heads, g = h / ratio, of = h % ratio;
    const DeltaPlaces at = delta_places(d, g);
    std::vector<double> q = convolved(t, g * d.key_dim, at.q, d.key_dim),
                        k = convolved(t, d.key_width() + g * d.key_dim, at.k, d.key_dim),
                        v = convolved(t, 2 * d.key_width() + h * d.value_dim,
                                      at.v + of * d.value_dim, d.value_dim);
    double q2 = 0, k2 = 0;
    for (int64_t i = 0; i < d.key_dim; ++i) q2 += q[i] * q[i], k2 += k[i] * k[i];
    for (int64_t i = 0; i < d.key_dim; ++i)
      q[i] /= std::sqrt(q2 + 1e-6) * std::sqrt(static_cast<double>(d.key_dim)),
          k[i] /= std::sqrt(k2 + 1e-6);
    const DeltaGates all = gates_of(in, d);
    const float* gates = all.data + (span.q_start + t) * all.stride;
    const double beta = sigmoid(gates[at.b + of]);
    const double decay = std::exp(-std::exp(static_cast<double>(w.a_log[h])) *
                                  softplus(double{gates[at.a + of]} + w.dt_bias[h]));
    double* s = state.data() + h * d.key_dim * d.value_dim;
    std::vector<double> o(d.value_dim);
    for (int64_t j = 0; j < d.value_dim; ++j) {
      double known = 0;
      for (int64_t i = 0; i < d.key_dim; ++i) {
        s[i * d.value_dim + j] *= decay;
        known += s[i * d.value_dim + j] * k[i];
      }
      const double delta = beta * (v[j] - known);
      for (int64_t i = 0; i < d.key_dim; ++i) {
        s[i * d.value_dim + j] += k[i] * delta;
        o[j] += s[i * d.value_dim + j] * q[i];
      }
    }
    return o;
  }
};

void norm_gated(Ctx& cx, float* att, const std::vector<double>& o, const float* z,
                const DeltaRuleWeights& w) {
  double squares = 0;
  for (const double x : o) squares += x * x;
  const double inverse = 1 / std::sqrt(squares / static_cast<double>(o.size()) + w.eps);
  for (size_t j = 0; j < o.size(); ++j)
    att[j] = stored(cx.activations, w.norm[j] * o[j] * inverse * z[j] * sigmoid(z[j]));
}

}  // namespace

void delta_rule(Ctx& cx, const Tensor& att, const RecurrentLayer& state, const DeltaRuleIn& in,
                const DeltaRuleDesc& d, const DeltaRuleWeights& w, const Step& s) {
  const int64_t ratio = d.value_heads / d.key_heads, size = d.key_dim * d.value_width();
  const int64_t conv_size = (d.taps - 1) * d.channels();
  for (int32_t i = 0; i < s.num_spans; ++i) {
    const Span& span = s.spans[i];
    const int32_t from = state.from[span.slot], to = state.to[span.slot];
    Sequence sequence{d, w, in, span, std::vector<double>(size), std::vector<double>(conv_size)};
    if (from != RecurrentLayer::kNoState) {
      const float *old = state.state.as<float>() + from * size,
                  *inputs = state.conv.as<float>() + from * conv_size;
      sequence.state.assign(old, old + size);
      sequence.conv.assign(inputs, inputs + conv_size);
    }
    for (int64_t t = 0; t < span.q_len; ++t)
      for (int64_t h = 0; h < d.value_heads; ++h) {
        const int64_t row = span.q_start + t;
        const float* z = in.qkvz.as<float>() + row * d.width() + delta_places(d, h / ratio).z +
                         h % ratio * d.value_dim;
        norm_gated(cx, att.as<float>() + row * d.value_width() + h * d.value_dim,
                   sequence.step(t, h), z, w);
      }
    float *left = state.state.as<float>() + to * size,
          *inputs = state.conv.as<float>() + to * conv_size;
    for (int64_t j = 0; j < size; ++j) left[j] = static_cast<float>(sequence.state[j]);
    for (int64_t j = 0; j < d.taps - 1; ++j)
      for (int64_t g = 0; g < d.key_heads; ++g) {
        const DeltaPlaces at = delta_places(d, g);
        const auto keep = [&](int64_t channel, int64_t place, int64_t n) {
          for (int64_t c = 0; c < n; ++c)
            inputs[j * d.channels() + channel + c] = static_cast<float>(
                sequence.input(span.q_len - d.taps + 1 + j, channel + c, place + c));
        };
        keep(g * d.key_dim, at.q, d.key_dim);
        keep(d.key_width() + g * d.key_dim, at.k, d.key_dim);
        keep(2 * d.key_width() + g * ratio * d.value_dim, at.v, ratio * d.value_dim);
      }
  }
}

}  // namespace nibble::ops::ref
