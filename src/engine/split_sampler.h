// SplitSampler: what a Sampler makes of a row that it has whole, of rows of which each rank has a
// slice: the same ids and the same bits of log-probabilities, from what is heaviest and from sums.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/sampler.h"
#include "engine/split_rows.h"

namespace nibble {

class SplitSampler {
 public:
  // `sampler` takes rows that must be whole.
  SplitSampler(SplitRows& rows, Sampler& sampler) : rows_(rows), sampler_(sampler) {}

  // As Sampler's.
  Sampler::Sampled sample(int64_t row, const SamplingParams& params, const SamplingState& state,
                          const Sampler::Masks& masks, std::vector<TokenLogprob>& top);
  bool score(int64_t row, int32_t next, int32_t k, PromptLogprobs& to);

 private:
  double log_sum(int64_t row, int32_t k, std::vector<TokenLogprob>& top);
  void adjust(int64_t row, const SamplingParams& params, const SamplingState& state,
              const Sampler::Masks& masks);
  void take_heaviest(int64_t row, const SamplingParams& params);
  int32_t draw(int64_t row, const SamplingParams& params, double u, float& logit);
  int32_t draw_kept(const SamplingParams& params, WeightSum total, double u);

  SplitRows& rows_;
  Sampler& sampler_;
  std::vector<Candidate> heaviest_;         // of the row, in order
  bool is_all_ = false;                     // there are no more
  std::vector<int32_t> ids_;                // that bias, penalties and bans name, in order
  std::vector<float> original_, adjusted_;  // their logits
};

}  // namespace nibble
