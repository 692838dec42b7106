// The twins of the residual add and of the RMS norm.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/store.h"
#include "ops/weight.h"

namespace nibble::ops::ref {

// y[i] = x[i] + d[i]: float32, as the residual stream is whatever the activations' format.
inline void add(float* y, const float* x, const float* d, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(static_cast<double>(x[i]) + d[i]);
}

// h = x / sqrt(mean(x^2) + eps) * (offset + weight): multiplied before the one rounding.
inline void rms_norm(DType act, float* h, const float* x, const Norm& norm, int64_t n) {
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += static_cast<double>(x[i]) * x[i];
  const double inv = 1 / std::sqrt(squares / n + norm.eps);
  for (int64_t i = 0; i < n; ++i)
    h[i] = stored(act, x[i] * inv * (norm.offset + double{bf16_to_float(norm.weight[i])}));
}

}  // namespace nibble::ops::ref
