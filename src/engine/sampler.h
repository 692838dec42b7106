// Sampler: chooses the next id from one row of logits. In this order: logit_bias, penalties,
// masks, then temperature 0 takes the largest; else temperature, min_p, top_k, top_p (over what is
// left, renormalised) and one draw. Random numbers come from (seed, output index) alone, so a
// request samples the same alone or in a batch, and again after preemption.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engine/logprobs.h"
#include "engine/request.h"
#include "engine/verification.h"
#include "ops/sample/draw.h"

namespace nibble {

// How often each id of a sequence has been seen; kept only where a penalty is asked for.
class TokenCounts {
 public:
  struct Entry {
    int32_t id;
    int32_t in_output;
  };
  // Room for `capacity` distinct ids; adds the prompt.
  void start(std::span<const int32_t> prompt, size_t capacity);
  void add_output(int32_t id);
  std::span<const Entry> entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;  // by id
};

// What a sequence carries from one token to the next.
struct SamplingState {
  uint64_t seed = 0;
  int64_t index = 0;  // of the output token to be sampled
  TokenCounts counts;
};

// Error text of a row that is not finite.
inline constexpr char kNotNumbers[] =
    "the model computed logits that are not numbers: its weights are damaged, or a kernel is wrong";

inline constexpr char kAllMasked[] = "every token is masked: nothing may come next";

// The logit of what is masked.
inline constexpr float kNever = -std::numeric_limits<float>::infinity();
// Adjusted logits stay within it, so that differences of two are finite.
inline constexpr float kLargestLogit = std::numeric_limits<float>::max() / 4;

bool has_penalties(const SamplingParams& params);

// What bias and penalties make of the ids that they name; at(id) is an id's logit.
template <typename At>
void adjust_logits(const SamplingParams& params, const SamplingState& state, At&& at) {
  const auto set = [&](int32_t id, float x) {
    at(id) = std::clamp(x, -kLargestLogit, kLargestLogit);
  };
  for (const auto& [id, bias] : params.logit_bias) set(id, at(id) + bias);
  if (!has_penalties(params)) return;
  for (const auto& [id, in_output] : state.counts.entries()) {
    float x = at(id);
    x = x > 0 ? x / params.repetition_penalty : x * params.repetition_penalty;
    if (in_output > 0)
      x -= params.frequency_penalty * static_cast<float>(in_output) + params.presence_penalty;
    set(id, x);
  }
}

// Weights of what min_p leaves. Differences are divided, not multiplied by 1 / temperature, which
// may overflow.
inline Weighting weighting_of(const SamplingParams& params, float best) {
  const float floor = params.min_p > 0 ? best + params.temperature * std::log(params.min_p)
                                       : std::numeric_limits<float>::lowest();
  return {best, params.temperature, floor};
}

// Whether an id asked for so is found where the logits are (ops/sample), with its log-probability.
bool is_found_on_gpu(const SamplingParams& params);

class Sampler {
 public:
  struct Sampled {
    int32_t id = -1;
    float logprob = 0;            // the model's own, of id; where params.logprobs >= 0
    const char* error = nullptr;  // why there is no id
  };
  // For one row only, beside the Sampler's own masked ids.
  struct Masks {
    std::span<const uint32_t> allowed;  // bit per id; empty: all
    std::span<const int32_t> banned;    // stop ids before min_tokens; not where all else is masked
  };

  Sampler(int32_t vocab_size, std::vector<int32_t> masked_ids);
  static constexpr int64_t bytes(int64_t vocab_size) {
    return vocab_size * static_cast<int64_t>(2 * sizeof(Candidate) + sizeof(float));
  }

  // Changes `logits` [V]. `top` gets the params.logprobs best ids of the model's own distribution.
  Sampled sample(std::span<float> logits, const SamplingParams& params, const SamplingState& state,
                 const Masks& masks, std::vector<TokenLogprob>& top);

  // What sample() draws from, at a temperature above 0; false where it has an error to say.
  bool find_distribution(std::span<const float> logits, const SamplingParams& params,
                         const SamplingState& state, const Masks& masks, Distribution& p);
  // As sample() says of an id that was chosen elsewhere, where log-probabilities are asked for.
  Sampled take(std::span<const float> logits, const SamplingParams& params, int32_t id,
               std::vector<TokenLogprob>& top);

  // Of a row that nothing else is asked of: the id drawn, or the likeliest where nothing is; -1
  // where a logit is not finite.
  int32_t find(std::span<const float> logits, const ops::Draw& draw);
  // What find() draws from.
  void find_distribution(std::span<const float> logits, const ops::Draw& draw, Distribution& p);

  // Of a row that is not sampled: what it says of `next` (-1: nothing) and the k best ids. False
  // where a logit is not finite.
  bool score(std::span<const float> logits, int32_t next, int32_t k, PromptLogprobs& to);

 private:
  void adjust(std::span<float> logits, const SamplingParams& params, const SamplingState& state,
              const Masks& masks);
  // Of a row with its masks, whose largest logit is `best`: the id that u draws.
  int32_t draw(std::span<const float> logits, const SamplingParams& params, float best, double u);
  WeightSum weigh(std::span<const float> logits, const SamplingParams& params, float best);
  void weigh(std::span<const float> logits, const SamplingParams& params, Distribution& p);
  WeightSum keep_nucleus(WeightSum target);

  int32_t vocab_size_;
  std::vector<int32_t> masked_ids_;
  std::vector<Candidate> kept_;  // ids ascending; capacity V
  std::vector<Candidate> work_;  // capacity V
  std::vector<float> original_;  // capacity V: the row before adjust(), for log-probabilities
};

// The same where the row has masks of its own, of which the GPU does not know.
inline bool is_found_on_gpu(const SamplingParams& params, const Sampler::Masks& masks) {
  return is_found_on_gpu(params) && masks.allowed.empty() && masks.banned.empty();
}

}  // namespace nibble
