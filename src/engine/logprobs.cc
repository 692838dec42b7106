#include "engine/logprobs.h"

#include <algorithm>

namespace nibble {

// Independent running values that one vector instruction or two update together.
constexpr size_t kLanes = 16;

bool all_finite(std::span<const float> logits) {
  // x - x is 0 for numbers and NaN for the rest; NaN stays in a sum.
  float sums[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) sums[j] += logits[i + j] - logits[i + j];
  }
  for (; i < logits.size(); ++i) sums[0] += logits[i] - logits[i];
  return std::all_of(std::begin(sums), std::end(sums), [](float sum) { return sum == 0; });
}

float largest(std::span<const float> logits) {
  float most[kLanes];
  std::fill(std::begin(most), std::end(most), -std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) most[j] = logits[i + j] > most[j] ? logits[i + j] : most[j];
  }
  for (; i < logits.size(); ++i) most[0] = std::max(most[0], logits[i]);
  return *std::max_element(std::begin(most), std::end(most));
}

WeightSum sum_weights(std::span<const float> logits, const Weighting& weighting) {
  WeightSum sum = 0;
  int32_t ties = weighting.ties;
  for (const float x : logits) sum += weighting.takes(x, ties) ? units(weighting(x)) : 0;
  return sum;
}

int32_t find_weight(std::span<const float> logits, const Weighting& weighting, WeightSum& target) {
  int32_t ties = weighting.ties;
  for (size_t i = 0; i < logits.size(); ++i) {
    const WeightSum weight = weighting.takes(logits[i], ties) ? units(weighting(logits[i])) : 0;
    if (weight > target) return static_cast<int32_t>(i);
    target -= weight;
  }
  return -1;
}

double log_of(float largest, WeightSum sum) {
  return largest + std::log(static_cast<double>(sum) * 0x1p-39);
}

double log_sum_exp(std::span<const float> logits) {
  const float most = largest(logits);
  return log_of(most, sum_weights(logits, plain_weights(most)));
}

int32_t draw_of(std::span<const Candidate> candidates, WeightSum total, double u) {
  const WeightSum target = std::min(share_of(total, u), total - 1);
  WeightSum sum = 0;
  for (const Candidate& c : candidates)
    if ((sum += units(c.weight)) > target) return c.id;
  return -1;
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
