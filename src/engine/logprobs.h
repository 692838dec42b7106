// Log-probabilities of one row of logits, and its largest entries. Each row by itself, in one
// fixed order, so that the bits do not depend on what else is in the batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"

namespace nibble {

// Whether all of a row are numbers: neither NaN nor infinite.
bool all_finite(std::span<const float> logits);

// The largest entry; for rows without NaN.
float largest(std::span<const float> logits);

// log(sum(exp(logits))), in double over float terms; for finite rows.
double log_sum_exp(std::span<const float> logits);

// A token and its logit; heavier() orders a distribution: larger logits first, lower ids on ties.
struct Candidate {
  int32_t id;
  float logit;
  float weight;  // exp((logit - largest) / temperature), once set
};
inline bool heavier(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// The k heaviest tokens above -inf, in no order; one pass over the row, no sort of it. Allocates
// nothing once `out` has room for min(V, 2k + 256).
void select_top(std::span<const float> logits, int32_t k, std::vector<Candidate>& out);

// The k best tokens with their log-probabilities, best first. `work` is scratch for select_top.
void top_logprobs(std::span<const float> logits, double lse, int32_t k,
                  std::vector<Candidate>& work, std::vector<TokenLogprob>& out);

}  // namespace nibble
