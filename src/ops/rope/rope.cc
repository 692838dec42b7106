#include "ops/rope/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "cpu/thread_pool.h"

namespace nibble::ops {

Rope make_rope(int head_dim, double theta, const std::optional<YarnParams>& yarn) {
  CHECK(head_dim > 0 && head_dim % 2 == 0);
  const int half = head_dim / 2;
  Rope rope{.inv_freq = std::vector<float>(half)};
  if (!yarn) {
    for (int i = 0; i < half; ++i)
      rope.inv_freq[i] = static_cast<float>(std::pow(theta, -static_cast<double>(i) / half));
    return rope;
  }
  // The index whose wave turns `rotations` times over the original context.
  const auto index_of = [&](double rotations) {
    return half * std::log(yarn->original_max_position / (rotations * 2 * std::numbers::pi)) /
           std::log(theta);
  };
  double low = index_of(yarn->beta_fast), high = index_of(yarn->beta_slow);
  if (yarn->truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1.0);
  if (low == high) high += 0.001;
  for (int i = 0; i < half; ++i) {
    const double inv = std::pow(theta, -static_cast<double>(i) / half);
    const double ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
    // Slow waves are stretched by the factor, fast ones kept.
    rope.inv_freq[i] = static_cast<float>(inv / yarn->factor * ramp + inv * (1 - ramp));
  }
  const double by_factor = yarn->factor > 1 ? 0.1 * std::log(yarn->factor) + 1 : 1;
  rope.concentration = yarn->attention_factor.value_or(by_factor);
  return rope;
}

Rope make_llama3_rope(int head_dim, double theta, const Llama3Params& params) {
  Rope rope = make_rope(head_dim, theta, std::nullopt);
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const double inv = std::pow(theta, -static_cast<double>(i) / half);
    const double turns = params.original_max_position * inv / (2 * std::numbers::pi);
    const double kept = std::clamp((turns - params.low) / (params.high - params.low), 0.0, 1.0);
    rope.inv_freq[i] = static_cast<float>((1 - kept) * inv / params.factor + kept * inv);
  }
  return rope;
}

void rope_angles(Ctx& cx, const Tensor& cos_sin, const Rope& rope, const Step& s) {
  const int64_t half = static_cast<int64_t>(rope.inv_freq.size());
  CHECK(cos_sin.shape[0] >= s.num_tokens && cos_sin.shape[1] == 2 * half);
  float* out = cos_sin.as<float>();
  cx.pool->parallel_for(s.num_tokens, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      float* row = out + t * 2 * half;
      for (int64_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(s.positions[t]) * rope.inv_freq[i];
        row[i] = static_cast<float>(std::cos(static_cast<double>(angle)) * rope.concentration);
        row[half + i] =
            static_cast<float>(std::sin(static_cast<double>(angle)) * rope.concentration);
      }
    }
  });
}

}  // namespace nibble::ops
