#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace nibble {

bool all_finite(std::span<const float> logits) {
  // x - x is 0 for numbers and NaN for the rest; NaN stays in a sum.
  float sum = 0;
  for (float x : logits) sum += x - x;
  return sum == 0;
}

double log_sum_exp(std::span<const float> logits) {
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float x : logits) sum += std::exp(x - most);
  return most + std::log(sum);
}

void select_top(std::span<const float> logits, int32_t k, std::vector<Candidate>& out) {
  out.clear();
  if (k <= 0) return;
  const size_t full = std::min(logits.size(), size_t{2} * k + 256);
  const auto shrink = [&] {
    std::nth_element(out.begin(), out.begin() + k - 1, out.end(), heavier);
    out.resize(k);
  };
  // What does not beat the k-th best so far is out: ids ascend, so equal logits lose.
  float bar = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] > bar)) continue;
    out.push_back({.id = static_cast<int32_t>(i), .logit = logits[i], .weight = 0});
    if (out.size() == full && full > static_cast<size_t>(k)) {
      shrink();
      bar = out[k - 1].logit;
    }
  }
  if (out.size() > static_cast<size_t>(k)) shrink();
}

void top_logprobs(std::span<const float> logits, double lse, int32_t k,
                  std::vector<Candidate>& work, std::vector<TokenLogprob>& out) {
  select_top(logits, k, work);
  std::sort(work.begin(), work.end(), heavier);
  out.clear();
  for (const Candidate& c : work) {
    out.push_back({.id = c.id, .logprob = static_cast<float>(c.logit - lse)});
  }
}

}  // namespace nibble
