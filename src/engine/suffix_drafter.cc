#include "engine/suffix_drafter.h"

#include "engine/sequence.h"

namespace nibble {
namespace {

constexpr int32_t kPastTokens = 1 << 20;

int32_t past_capacity(const SpeculationOptions& options) {
  return options.suffix_max_requests > 0 ? kPastTokens : 0;
}

struct SuffixMemory : DraftMemory {
  explicit SuffixMemory(int32_t capacity) : index(capacity) {}
  SuffixIndex index;
};

}  // namespace

SuffixDrafter::SuffixDrafter(const SpeculationOptions& options)
    : limits_{.depth = options.suffix_max_depth,
              .factor = options.suffix_max_factor,
              .min_token_probability = options.suffix_min_token_probability},
      max_requests_(options.suffix_max_requests),
      past_(past_capacity(options)) {}

int64_t SuffixDrafter::bytes(const SpeculationOptions& options) {
  return SuffixIndex::bytes(past_capacity(options));
}

// With all tokens of the sequence so far.
SuffixIndex& SuffixDrafter::own_index(const Sequence& sequence) {
  if (sequence.draft_memory == nullptr) {
    sequence.draft_memory =
        std::make_unique<SuffixMemory>(static_cast<int32_t>(sequence.tokens.capacity()));
  }
  SuffixIndex& index = static_cast<SuffixMemory&>(*sequence.draft_memory).index;
  while (index.size() < sequence.length()) index.append(sequence.tokens[index.size()]);
  return index;
}

void SuffixDrafter::propose(const Sequence& sequence, int32_t k, std::vector<int32_t>& ids) {
  const double own = own_index(sequence).draft(sequence.tokens, k, limits_, 0, ids);
  past_.draft(sequence.tokens, k, limits_, own, ids);
}

void SuffixDrafter::has_ended(const Sequence& sequence) {
  if (max_requests_ == 0 || !sequence.request.cache_salt.empty()) return;
  starts_.push_back(past_.size());
  for (int32_t i = sequence.num_prompt; i < sequence.length(); ++i) {
    past_.append(sequence.tokens[i]);
  }
  past_.append(-1);
  if (std::ssize(starts_) > max_requests_) starts_.pop_front();
  past_.forget_before(starts_.front());
}

}  // namespace nibble
