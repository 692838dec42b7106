// How far one model's predictions are from another's: what `nibble eval` adds up over a text.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace nibble::cli {

// Of one position. Natural logarithms.
struct PositionComparison {
  double kl = 0;         // sum p log(p / q), p the reference's: what q loses
  double reference = 0;  // log-probability of the id that follows
  double candidate = 0;
  bool same_top = false;  // both think the same id likeliest
};

// Logits [V] of both, all finite; `next` follows in the text.
PositionComparison compare_logits(std::span<const float> reference,
                                  std::span<const float> candidate, int32_t next);

struct ComparisonSummary {
  int64_t positions = 0;
  double reference_nll = 0, candidate_nll = 0;  // means; perplexity is exp() of it
  double nll_difference_error = 0;              // standard error of candidate - reference
  double kl_mean = 0, kl_median = 0, kl_99 = 0, kl_max = 0;
  double top1_agreement = 0;  // share of positions
};

// At least one position.
ComparisonSummary summarize(std::span<const PositionComparison> positions);

}  // namespace nibble::cli
