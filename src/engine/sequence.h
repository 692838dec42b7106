// Sequence: a request on its way through the engine.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/draft_rates.h"
#include "engine/kv_cache.h"
#include "engine/metrics.h"
#include "engine/request.h"
#include "engine/sampler.h"

namespace nibble {

// What one level of priority is worth: so nobody waits for ever behind better ones that keep
// coming.
inline constexpr std::chrono::seconds kWaitPerPriority{60};

// What a drafter keeps of a sequence.
struct DraftMemory {
  virtual ~DraftMemory() = default;
};

struct Sequence {
  RequestId id = 0;
  Request request;              // without its prompt, which is in `tokens`
  std::vector<int32_t> tokens;  // prompt, then output; room for all from the start
  int32_t num_prompt;
  int32_t num_computed = 0;  // tokens whose state is in the pages
  int32_t num_cached = -1;   // of the prompt, found in the prefix cache; -1: has not started yet
  int32_t num_scored = 0;    // prompt positions whose log-probabilities were reported
  int32_t slot = KvCache::kNoSlot;
  bool is_held = false;  // left out of steps until the mask for its next token is there
  SamplingState sampling;
  std::vector<int32_t> drafts;  // drafts of what follows `tokens`
  int32_t num_wanted = 0;       // of them, that are worth verifying
  int32_t num_verified = 0;     // of them, that the next step may verify
  // Of a head: the committed tokens that it was fed, and the row of its logits that gives the first
  // of the drafts to come, -1: none.
  int32_t num_fed = 0, draft_row = -1;
  bool lacks_row = false;  // a head is still to be fed the token before num_fed, without a row
  // Of what is drafted: the part of the answer, each of which has rates of its own once something
  // was drafted in it.
  int draft_part = 0;
  std::array<std::optional<DraftRates>, TokenWatcher::kParts> part_rates;
  mutable std::unique_ptr<DraftMemory> draft_memory;  // the drafter's
  RequestTimes times;
  // Other answers to the same prompt. They wait here until all of it but its last token is
  // computed, and then go on from copies of this sequence.
  std::vector<std::unique_ptr<Sequence>> forks;

  // `random_seed` is used where the request names none.
  Sequence(Request&& r, uint64_t random_seed)
      : request(std::move(r)), num_prompt(static_cast<int32_t>(request.prompt.size())) {
    tokens = std::move(request.prompt);
    tokens.reserve(tokens.size() + request.max_tokens);
    if (request.prompt_logprobs < 0) num_scored = num_prompt;
    sampling.seed = request.sampling.seed.value_or(random_seed);
    if (has_penalties(request.sampling)) sampling.counts.start(tokens, tokens.capacity());
  }

  void append(int32_t token) {
    tokens.push_back(token);
    ++sampling.index;
    if (has_penalties(request.sampling)) sampling.counts.add_output(token);
  }

  std::optional<DraftRates>& draft_rates() { return part_rates[draft_part]; }
  int32_t length() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_left() const { return length() - num_computed; }  // at least 1 while it runs
  int32_t num_output() const { return length() - num_prompt; }
  // The earlier goes first.
  SteadyTime turn() const { return times.submitted + request.priority * kWaitPerPriority; }
  // Another answer can start from here, at the last token of the prompt.
  bool can_fork() const { return num_computed >= num_prompt - 1; }
  bool is_scored() const { return num_scored == num_prompt; }
  MaskState mask_state() const {
    return request.watcher == nullptr ? MaskState::kReady : request.watcher->mask_state();
  }
};

// Who goes first.
inline bool goes_before(const std::unique_ptr<Sequence>& a, const std::unique_ptr<Sequence>& b) {
  return std::pair(a->turn(), a->id) < std::pair(b->turn(), b->id);
}

// Tokens [begin, begin + length) of a sequence in one step; the last num_out of them want logits,
// and the last num_drafts are drafts that the step verifies.
struct Chunk {
  Sequence* sequence;
  int32_t begin;
  int32_t length;
  int32_t num_out;
  int32_t num_drafts = 0;

  bool reaches_end() const { return begin + length - num_drafts == sequence->length(); }
};

}  // namespace nibble
