#include "engine/split_sampler.h"

#include <algorithm>

#include "engine/philox.h"

namespace nibble {

// And its k best ids.
double SplitSampler::log_sum(int64_t row, int32_t k, std::vector<TokenLogprob>& top) {
  const float largest = heaviest_[0].logit;
  const double lse = log_of(largest, rows_.score(row, plain_weights(largest), ids_, original_));
  top.clear();
  for (int32_t i = 0; i < std::min(k, static_cast<int32_t>(heaviest_.size())); ++i)
    top.push_back({heaviest_[i].id, static_cast<float>(heaviest_[i].logit - lse)});
  return lse;
}

// Stop ids are banned, but where nothing else is left.
void SplitSampler::adjust(int64_t row, const SamplingParams& params, const SamplingState& state,
                          const Sampler::Masks& masks) {
  const auto at = [&](int32_t id) -> float& {
    return adjusted_[std::ranges::lower_bound(ids_, id) - ids_.begin()];
  };
  adjusted_ = original_;
  adjust_logits(params, state, at);
  const std::vector<float> unbanned = adjusted_;
  for (const int32_t id : masks.banned) at(id) = kNever;
  rows_.adjust(row, ids_, adjusted_, masks.allowed);
  is_all_ = rows_.heaviest(row, heaviest_);
  if (!heaviest_.empty() || masks.banned.empty()) return;
  rows_.adjust(row, ids_, unbanned, masks.allowed);
  is_all_ = rows_.heaviest(row, heaviest_);
}

// Of a row that nobody has adjusted: less what is always masked, and enough of it.
void SplitSampler::take_heaviest(int64_t row, const SamplingParams& params) {
  std::erase_if(heaviest_, [&](const Candidate& c) {
    return std::ranges::binary_search(rows_.masked_ids(), c.id);
  });
  const bool has_few = params.temperature > 0 && params.top_k <= RowSummary::kMost;
  const int32_t wanted = has_few ? std::max(params.top_k, 1) : 1;
  if (is_all_ || std::ssize(heaviest_) >= wanted) return;
  rows_.adjust(row, {}, {}, {});
  is_all_ = rows_.heaviest(row, heaviest_);
}

Sampler::Sampled SplitSampler::sample(int64_t row, const SamplingParams& params,
                                      const SamplingState& state, const Sampler::Masks& masks,
                                      std::vector<TokenLogprob>& top) {
  top.clear();
  if (!rows_.is_finite(row)) return {.error = kNotNumbers};
  if (params.logprobs > RowSummary::kMost)
    return sampler_.sample(rows_.whole(row), params, state, masks, top);
  is_all_ = rows_.heaviest(row, heaviest_);
  ids_.assign(masks.banned.begin(), masks.banned.end());
  for (const auto& [id, bias] : params.logit_bias) ids_.push_back(id);
  if (has_penalties(params))
    for (const auto& entry : state.counts.entries()) ids_.push_back(entry.id);
  std::ranges::sort(ids_);
  ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
  original_.resize(ids_.size());

  double lse = 0;
  if (params.logprobs >= 0 || !ids_.empty()) lse = log_sum(row, params.logprobs, top);
  if (!ids_.empty() || !masks.allowed.empty())
    adjust(row, params, state, masks);
  else
    take_heaviest(row, params);
  if (heaviest_.empty()) return {.error = kAllMasked};

  Sampler::Sampled sampled{.id = heaviest_[0].id};
  float logit = heaviest_[0].logit;
  if (params.temperature > 0)
    sampled.id = draw(row, params, uniform(state.seed, state.index, kDrawsId), logit);
  if (params.logprobs < 0) return sampled;
  const auto named = std::ranges::lower_bound(ids_, sampled.id);
  if (named != ids_.end() && *named == sampled.id) logit = original_[named - ids_.begin()];
  sampled.logprob = static_cast<float>(logit - lse);
  return sampled;
}

bool SplitSampler::score(int64_t row, int32_t next, int32_t k, PromptLogprobs& to) {
  if (k > RowSummary::kMost) return sampler_.score(rows_.whole(row), next, k, to);
  if (!rows_.is_finite(row)) return false;
  is_all_ = rows_.heaviest(row, heaviest_);
  ids_.assign(next >= 0 ? 1 : 0, next);
  original_.resize(ids_.size());
  const double lse = log_sum(row, k, to.top);
  to.next_logprob =
      next >= 0 ? static_cast<float>(original_[0] - lse) : std::numeric_limits<float>::quiet_NaN();
  return true;
}

// Of a row with its masks, whose heaviest ids are known. `logit`: the id's.
int32_t SplitSampler::draw(int64_t row, const SamplingParams& params, double u, float& logit) {
  const float best = heaviest_[0].logit;
  const Weighting weighting = weighting_of(params, best);
  const bool has_top_k = params.top_k > 0 && params.top_k < rows_.vocab_size();
  bool knows_all = is_all_ || heaviest_.back().logit < weighting.floor;
  if (has_top_k && std::ssize(heaviest_) >= params.top_k) {
    heaviest_.resize(params.top_k);
    knows_all = true;
  }
  std::erase_if(heaviest_, [&](const Candidate& c) { return c.logit < weighting.floor; });
  WeightSum known = 0;
  for (Candidate& c : heaviest_) known += units(c.weight = weighting(c.logit));
  WeightSum total = known;
  if (!knows_all) {
    rows_.begin(row, weighting);
    if (has_top_k) rows_.keep_heaviest(params.top_k);
    // A nucleus may still end within what is known.
    const bool may_know = params.top_p < 1 && !has_top_k;
    if (may_know) total = rows_.sum();
    if (!may_know || share_of(total, params.top_p) > known) {
      if (params.top_p < 1) rows_.keep_nucleus(params.top_p);
      const RowSummary::Entry found = rows_.draw(u);
      logit = found.logit;
      return found.id;
    }
  }
  const int32_t id = draw_kept(params, total, u);
  logit = std::ranges::find(heaviest_, id, &Candidate::id)->logit;
  return id;
}

// Of a nucleus that is known whole, of weights that add up to `total`.
int32_t SplitSampler::draw_kept(const SamplingParams& params, WeightSum total, double u) {
  if (params.top_p < 1) {
    const WeightSum target = share_of(total, params.top_p);
    size_t n = 1;
    total = units(heaviest_[0].weight);
    while (total < target) total += units(heaviest_[n++].weight);
    heaviest_.resize(n);
  }
  std::ranges::sort(heaviest_, {}, &Candidate::id);
  return draw_of(heaviest_, total, u);
}

}  // namespace nibble
