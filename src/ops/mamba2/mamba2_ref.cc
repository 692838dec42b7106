#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/mamba2/mamba2.h"
#include "ops/store.h"

namespace nibble::ops::ref {
namespace {

double silu(double x) { return x / (1 + std::exp(-x)); }
double softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

// One sequence's part of a step, in double; states are rounded to float32 when it ends.
struct Sequence {
  const Mamba2Desc& d;
  const Mamba2Weights& w;
  const float* in;            // of its first token
  std::vector<double> state;  // [NH, N, P]
  std::vector<double> conv;   // [taps - 1, channels] inputs before the step

  // Input of a channel of the convolution at token t of the sequence's part; t may be negative.
  double input(int64_t t, int64_t channel) const {
    return t < 0 ? conv[(d.taps - 1 + t) * d.channels() + channel]
                 : in[t * d.width() + d.inner() + channel];
  }
  double convolved(int64_t t, int64_t channel) const {
    double sum = w.conv_bias[channel];
    for (int64_t j = 0; j < d.taps; ++j)
      sum += w.conv[channel * d.taps + j] * input(t - d.taps + 1 + j, channel);
    return silu(sum);
  }

  // What head h leaves of token t, gated.
  std::vector<double> step(int64_t t, int64_t h) {
    const int64_t g = h / d.group_heads();
    const float *z = in + t * d.width() + h * d.head_dim, *dts = in + t * d.width() + d.dt();
    const double dt = std::clamp<double>(softplus(double{dts[h]} + w.dt_bias[h]), d.dt_least,
                                         d.dt_most),
                 decay = std::exp(-std::exp(static_cast<double>(w.a_log[h])) * dt);
    double* s = state.data() + h * d.state_dim * d.head_dim;
    std::vector<double> x(d.head_dim), y(d.head_dim);
    for (int64_t j = 0; j < d.head_dim; ++j) {
      x[j] = convolved(t, h * d.head_dim + j);
      y[j] = w.d[h] * x[j];
    }
    for (int64_t i = 0; i < d.state_dim; ++i) {
      const double b = convolved(t, d.b() + g * d.state_dim + i),
                   c = convolved(t, d.c() + g * d.state_dim + i);
      for (int64_t j = 0; j < d.head_dim; ++j) {
        double& at = s[i * d.head_dim + j];
        at = decay * at + b * (dt * x[j]);
        y[j] += at * c;
      }
    }
    for (int64_t j = 0; j < d.head_dim; ++j) y[j] *= silu(z[j]);
    return y;
  }
};

}  // namespace

void mamba2(Ctx& cx, const Tensor& att, const RecurrentLayer& state, const Tensor& in,
            const Mamba2Desc& d, const Mamba2Weights& w, const Step& s) {
  for (int32_t i = 0; i < s.num_spans; ++i) {
    const Span& span = s.spans[i];
    const int32_t from = state.from[span.slot], to = state.to[span.slot];
    Sequence sequence{d, w, in.as<float>() + span.q_start * d.width(),
                      std::vector<double>(d.state_size()), std::vector<double>(d.conv_size())};
    if (from != RecurrentLayer::kNoState) {
      std::copy_n(state.state.as<float>() + from * d.state_size(), d.state_size(),
                  sequence.state.begin());
      std::copy_n(state.conv.as<float>() + from * d.conv_size(), d.conv_size(),
                  sequence.conv.begin());
    }
    for (int64_t t = 0; t < span.q_len; ++t)
      for (int64_t g = 0; g < d.groups; ++g) {
        std::vector<double> all;
        for (int64_t h = g * d.group_heads(); h < (g + 1) * d.group_heads(); ++h)
          for (const double y : sequence.step(t, h)) all.push_back(y);
        double squares = 0;
        for (const double y : all) squares += y * y;
        const double inverse = 1 / std::sqrt(squares / static_cast<double>(all.size()) + w.eps);
        const int64_t first = g * d.group_width();
        float* out = att.as<float>() + (span.q_start + t) * d.inner() + first;
        for (int64_t j = 0; j < d.group_width(); ++j)
          out[j] = stored(cx.activations, w.norm[first + j] * all[j] * inverse);
      }
    float *left = state.state.as<float>() + to * d.state_size(),
          *inputs = state.conv.as<float>() + to * d.conv_size();
    for (int64_t j = 0; j < d.state_size(); ++j) left[j] = static_cast<float>(sequence.state[j]);
    for (int64_t j = 0; j < d.taps - 1; ++j)
      for (int64_t channel = 0; channel < d.channels(); ++channel)
        inputs[j * d.channels() + channel] =
            static_cast<float>(sequence.input(span.q_len - d.taps + 1 + j, channel));
  }
}

}  // namespace nibble::ops::ref
