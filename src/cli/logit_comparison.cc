#include "cli/logit_comparison.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace nibble::cli {
namespace {

double log_sum_exp(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float l : logits) sum += std::exp(l - largest);
  return largest + std::log(sum);
}

// The smallest value that `share` of them do not exceed.
double quantile(std::span<const double> sorted, double share) {
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[std::max<size_t>(rank, 1) - 1];
}

}  // namespace

PositionComparison compare_logits(std::span<const float> reference,
                                  std::span<const float> candidate, int32_t next) {
  CHECK(reference.size() == candidate.size());
  const double p_sum = log_sum_exp(reference), q_sum = log_sum_exp(candidate);
  double kl = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double log_p = reference[i] - p_sum;
    kl += std::exp(log_p) * (log_p - (candidate[i] - q_sum));
  }
  const auto top = [](std::span<const float> logits) {
    return std::max_element(logits.begin(), logits.end()) - logits.begin();
  };
  return {.kl = std::max(kl, 0.0),  // below 0 by rounding only
          .reference = reference[next] - p_sum,
          .candidate = candidate[next] - q_sum,
          .same_top = top(reference) == top(candidate)};
}

ComparisonSummary summarize(std::span<const PositionComparison> positions) {
  CHECK(!positions.empty());
  ComparisonSummary s{.positions = std::ssize(positions)};
  const auto count = static_cast<double>(positions.size());
  std::vector<double> kl;
  for (const PositionComparison& p : positions) {
    s.reference_nll -= p.reference / count;
    s.candidate_nll -= p.candidate / count;
    s.kl_mean += p.kl / count;
    s.top1_agreement += p.same_top;
    kl.push_back(p.kl);
  }
  s.top1_agreement /= count;
  const double mean = s.candidate_nll - s.reference_nll;
  double squares = 0;
  for (const PositionComparison& p : positions) {
    const double off = p.reference - p.candidate - mean;
    squares += off * off;
  }
  if (positions.size() > 1) s.nll_difference_error = std::sqrt(squares / (count - 1) / count);
  std::sort(kl.begin(), kl.end());
  s.kl_median = quantile(kl, .5);
  s.kl_99 = quantile(kl, .99);
  s.kl_max = kl.back();
  return s;
}

}  // namespace nibble::cli
