// Log-probabilities of one row of logits, and its largest entries. Each row by itself, in one
// fixed order, so that the bits do not depend on what else is in the batch.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engine/request.h"

namespace nibble {

// Whether all of a row are numbers: neither NaN nor infinite.
bool all_finite(std::span<const float> logits);

// The largest entry; for rows without NaN.
float largest(std::span<const float> logits);

// Weights are added up in whole units of 2^-39, so that a sum is the same in any order, and parts
// of a row that lie apart add up to the row's: 2^24 weights of up to 1 have room.
using WeightSum = uint64_t;
inline WeightSum units(float weight) {
  return static_cast<WeightSum>(static_cast<int64_t>(std::min(weight, 1.0f) * 0x1p39f + 0.5f));
}
// A share of a sum, of which it is no more than all.
inline WeightSum share_of(WeightSum sum, double share) {
  return std::min(sum, static_cast<WeightSum>(share * static_cast<double>(sum)));
}

// exp((logit - largest) / temperature), which is what is drawn from.
struct Weighting {
  float largest, temperature;
  float floor;                                         // logits below it weigh nothing
  int32_t ties = std::numeric_limits<int32_t>::max();  // nor any just at it but the first so many
  float operator()(float logit) const { return std::exp((logit - largest) / temperature); }
  // Of logits in order of ids, of which `ties` more just at the floor are taken.
  bool takes(float logit, int32_t& ties) const {
    return logit > floor || (logit == floor && ties-- > 0);
  }
};
WeightSum sum_weights(std::span<const float> logits, const Weighting& weighting);
// Where the sum goes beyond `target`, which becomes what is left of it; -1: nowhere.
int32_t find_weight(std::span<const float> logits, const Weighting& weighting, WeightSum& target);

// Of weights against the largest logit, at temperature 1: the logarithm of the sum of exp(logit).
double log_of(float largest, WeightSum sum);
inline constexpr Weighting plain_weights(float largest) {
  return {largest, 1, -std::numeric_limits<float>::infinity()};
}
// log(sum(exp(logits))) over float terms; for finite rows.
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

// The id that u draws of candidates with their weights, ids ascending, which add up to `total`.
int32_t draw_of(std::span<const Candidate> candidates, WeightSum total, double u);

// The k heaviest tokens above -inf, in no order; one pass over the row, no sort of it. Allocates
// nothing once `out` has room for min(V, 2k + 256).
void select_top(std::span<const float> logits, int32_t k, std::vector<Candidate>& out);

// The k best tokens with their log-probabilities, best first. `work` is scratch for select_top.
void top_logprobs(std::span<const float> logits, double lse, int32_t k,
                  std::vector<Candidate>& work, std::vector<TokenLogprob>& out);

}  // namespace nibble
