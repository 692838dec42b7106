#include "engine/sampler.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "engine/philox.h"

namespace nibble {
namespace {

SamplingParams params_of(const ops::Draw& how) {
  return {
      .temperature = how.temperature, .top_p = how.top_p, .top_k = how.top_k, .min_p = how.min_p};
}

// Moves the fewest heaviest candidates whose weights reach `target` to the front; returns the last
// of them. Halves the undecided range until it is small: linear in all, whatever the weights.
Candidate nucleus_end(std::vector<Candidate>& c, WeightSum target) {
  constexpr size_t kSmall = 64;
  size_t low = 0;  // [0, low) is in, with weight `mass`; [high, end) is out
  size_t high = c.size();
  WeightSum mass = 0;
  while (high - low > kSmall) {
    const size_t mid = (low + high) / 2;
    std::nth_element(c.begin() + low, c.begin() + mid, c.begin() + high, heavier);
    WeightSum upper = 0;
    for (size_t i = low; i < mid; ++i) upper += units(c[i].weight);
    if (mass + upper >= target) {
      high = mid;
    } else {
      mass += upper;
      low = mid;
    }
  }
  std::sort(c.begin() + low, c.begin() + high, heavier);
  for (size_t i = low; i < high; ++i) {
    mass += units(c[i].weight);
    if (mass >= target) return c[i];
  }
  return c[high - 1];
}

}  // namespace

void TokenCounts::start(std::span<const int32_t> prompt, size_t capacity) {
  entries_.clear();
  entries_.reserve(capacity);
  for (int32_t id : prompt) entries_.push_back({.id = id, .in_output = 0});
  const auto less = [](const Entry& a, const Entry& b) { return a.id < b.id; };
  const auto same = [](const Entry& a, const Entry& b) { return a.id == b.id; };
  std::sort(entries_.begin(), entries_.end(), less);
  entries_.erase(std::unique(entries_.begin(), entries_.end(), same), entries_.end());
}

void TokenCounts::add_output(int32_t id) {
  const auto at = std::lower_bound(entries_.begin(), entries_.end(), id,
                                   [](const Entry& e, int32_t i) { return e.id < i; });
  if (at != entries_.end() && at->id == id) {
    ++at->in_output;
  } else {
    entries_.insert(at, {.id = id, .in_output = 1});
  }
}

bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
         params.frequency_penalty != 0.0f;
}

bool is_found_on_gpu(const SamplingParams& params) {
  return params.logprobs <= 0 && params.logit_bias.empty() && !has_penalties(params);
}

Sampler::Sampler(int32_t vocab_size, std::vector<int32_t> masked_ids)
    : vocab_size_(vocab_size), masked_ids_(std::move(masked_ids)) {
  for (int32_t id : masked_ids_) CHECK(id >= 0 && id < vocab_size);
  kept_.reserve(vocab_size);
  work_.reserve(vocab_size);
  original_.reserve(vocab_size);
}

Sampler::Sampled Sampler::sample(std::span<float> logits, const SamplingParams& params,
                                 const SamplingState& state, const Masks& masks,
                                 std::vector<TokenLogprob>& top) {
  CHECK(logits.size() == static_cast<size_t>(vocab_size_));
  top.clear();
  if (!all_finite(logits)) return {.error = kNotNumbers};
  double lse = 0;
  if (params.logprobs >= 0) {
    lse = log_sum_exp(logits);
    top_logprobs(logits, lse, params.logprobs, work_, top);
    original_.assign(logits.begin(), logits.end());
  }
  adjust(logits, params, state, masks);
  const float best = largest(logits);
  if (best == kNever) return {.error = kAllMasked};
  Sampled sampled;
  if (params.temperature > 0) {
    sampled.id = draw(logits, params, best, uniform(state.seed, state.index, kDrawsId));
  } else {
    sampled.id = static_cast<int32_t>(std::ranges::find(logits, best) - logits.begin());
  }
  if (params.logprobs >= 0) sampled.logprob = static_cast<float>(original_[sampled.id] - lse);
  return sampled;
}

bool Sampler::score(std::span<const float> logits, int32_t next, int32_t k, PromptLogprobs& to) {
  if (!all_finite(logits)) return false;
  const double lse = log_sum_exp(logits);
  to.next_logprob =
      next >= 0 ? static_cast<float>(logits[next] - lse) : std::numeric_limits<float>::quiet_NaN();
  top_logprobs(logits, lse, k, work_, to.top);
  return true;
}

bool Sampler::find_distribution(std::span<const float> logits, const SamplingParams& params,
                                const SamplingState& state, const Masks& masks, Distribution& p) {
  if (!all_finite(logits)) return false;
  original_.assign(logits.begin(), logits.end());
  adjust(original_, params, state, masks);
  if (largest(original_) == kNever) return false;
  weigh(original_, params, p);
  return true;
}

Sampler::Sampled Sampler::take(std::span<const float> logits, const SamplingParams& params,
                               int32_t id, std::vector<TokenLogprob>& top) {
  top.clear();
  const double lse = log_sum_exp(logits);
  top_logprobs(logits, lse, params.logprobs, work_, top);
  return {.id = id, .logprob = static_cast<float>(logits[id] - lse)};
}

int32_t Sampler::find(std::span<const float> logits, const ops::Draw& how) {
  if (!all_finite(logits)) return -1;
  const float best = largest(logits);
  if (how.temperature == 0)
    return static_cast<int32_t>(std::ranges::find(logits, best) - logits.begin());
  return draw(logits, params_of(how), best, how.u);
}

void Sampler::find_distribution(std::span<const float> logits, const ops::Draw& how,
                                Distribution& p) {
  weigh(logits, params_of(how), p);
}

void Sampler::adjust(std::span<float> logits, const SamplingParams& params,
                     const SamplingState& state, const Masks& masks) {
  adjust_logits(params, state, [&](int32_t id) -> float& { return logits[id]; });
  for (int32_t id : masked_ids_) logits[id] = kNever;
  for (size_t i = 0; !masks.allowed.empty() && i < logits.size(); ++i) {
    if ((masks.allowed[i / 32] >> (i % 32) & 1) == 0) logits[i] = kNever;
  }
  kept_.clear();  // those that `banned` takes out
  for (int32_t id : masks.banned) {
    if (logits[id] == kNever) continue;
    kept_.push_back({.id = id, .logit = logits[id], .weight = 0});
    logits[id] = kNever;
  }
  if (kept_.empty() || largest(logits) != kNever) return;
  for (const Candidate& c : kept_) logits[c.id] = c.logit;
}

// Leaves in kept_ the ids that may be drawn, and their weights; returns the sum.
WeightSum Sampler::weigh(std::span<const float> logits, const SamplingParams& params, float best) {
  const Weighting weighting = weighting_of(params, best);
  if (params.top_k > 0 && params.top_k < vocab_size_) {
    select_top(logits, params.top_k, kept_);
    std::sort(kept_.begin(), kept_.end(),
              [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
    std::erase_if(kept_, [&](const Candidate& c) { return c.logit < weighting.floor; });
  } else {
    kept_.clear();
    for (int32_t i = 0; i < vocab_size_; ++i) {
      if (logits[i] >= weighting.floor) kept_.push_back({.id = i, .logit = logits[i], .weight = 0});
    }
  }
  WeightSum total = 0;
  for (Candidate& c : kept_) total += units(c.weight = weighting(c.logit));
  return params.top_p < 1 ? keep_nucleus(share_of(total, params.top_p)) : total;
}

void Sampler::weigh(std::span<const float> logits, const SamplingParams& params, Distribution& p) {
  const auto total = static_cast<double>(weigh(logits, params, largest(logits)));
  p.assign(logits.size(), 0);
  for (const Candidate& c : kept_) p[c.id] = static_cast<double>(units(c.weight)) / total;
}

int32_t Sampler::draw(std::span<const float> logits, const SamplingParams& params, float best,
                      double u) {
  const WeightSum total = weigh(logits, params, best);
  return draw_of(kept_, total, u);
}

// Drops all but the fewest heaviest whose weights reach `target`; returns their weight.
WeightSum Sampler::keep_nucleus(WeightSum target) {
  // Sums per octave of the weight, which is at most 1, find where the target is reached without
  // ordering anything; only that octave's tokens are put in order.
  constexpr size_t kOctaves = 128;
  const auto octave = [](const Candidate& c) { return std::bit_cast<uint32_t>(c.weight) >> 23; };
  WeightSum weights[kOctaves] = {};
  for (const Candidate& c : kept_) weights[octave(c)] += units(c.weight);
  WeightSum above = 0;
  size_t last_octave = kOctaves - 1;
  while (last_octave > 0 && above + weights[last_octave] < target) above += weights[last_octave--];

  work_.clear();
  for (const Candidate& c : kept_) {
    if (octave(c) == last_octave) work_.push_back(c);
  }
  if (!work_.empty()) {
    const Candidate last = nucleus_end(work_, target - above);
    std::erase_if(kept_, [&](const Candidate& c) { return heavier(last, c); });
  }
  WeightSum total = 0;
  for (const Candidate& c : kept_) total += units(c.weight);
  return total;
}

}  // namespace nibble
