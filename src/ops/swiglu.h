// Swiglu: the gated activation between the two matrices of an MLP.
//   g = min(gate, limit); v = clamp(up, -limit, limit); u = g * sigmoid(alpha g) * (v + shift)
// As it stands silu(gate) * up; gpt-oss has {1.702, 1, 7}.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

namespace nibble::ops {

struct Swiglu {
  float alpha = 1;
  float shift = 0;
  float limit = std::numeric_limits<float>::infinity();
  bool operator==(const Swiglu&) const = default;
  bool is_clamped() const { return limit < std::numeric_limits<float>::infinity(); }
};

namespace ref {
inline double swiglu(double gate, double up, const Swiglu& act) {
  const double limit = act.limit;
  const double g = std::min(gate, limit), v = std::clamp(up, -limit, limit);
  return g / (1 + std::exp(-static_cast<double>(act.alpha) * g)) * (v + act.shift);
}
}  // namespace ref

}  // namespace nibble::ops
