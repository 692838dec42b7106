// Swiglu: the activation between the two matrices of an MLP, gated:
//   g = min(gate, limit); v = clamp(up, -limit, limit); u = g * sigmoid(alpha g) * (v + shift)
// As it stands silu(gate) * up; gpt-oss has {1.702, 1, 7}. With an alpha of 0 there is no gate: u =
// max(up, 0)^2 of every row of the first matrix, which then has as many as u has columns.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace nibble::ops {

struct Swiglu {
  float alpha = 1;
  float shift = 0;
  float limit = std::numeric_limits<float>::infinity();
  bool operator==(const Swiglu&) const = default;
  constexpr bool is_relu2() const { return alpha == 0; }  // no gate
  // Rows of the first matrix to a column of u.
  constexpr int64_t rows_each() const { return is_relu2() ? 1 : 2; }
  bool is_clamped() const { return limit < std::numeric_limits<float>::infinity(); }
};

inline constexpr Swiglu kRelu2{.alpha = 0};

namespace ref {
inline double swiglu(double gate, double up, const Swiglu& act) {
  const double limit = act.limit;
  const double g = std::min(gate, limit), v = std::clamp(up, -limit, limit);
  return g / (1 + std::exp(-static_cast<double>(act.alpha) * g)) * (v + act.shift);
}
inline double relu2(double up) { return up <= 0 ? 0 : up * up; }
}  // namespace ref

}  // namespace nibble::ops
