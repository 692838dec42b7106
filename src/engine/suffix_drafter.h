// SuffixDrafter: drafts by what followed the same words before, in the sequence's own text or in
// past answers, as many as the match is long and as often as they did follow ("suffix decoding",
// Oliaro et al., arXiv:2411.04975). What is kept of a sequence goes with it; past answers share a
// fixed memory. Answers to requests with a salt are not kept.
#pragma once

#include <deque>

#include "engine/drafter.h"
#include "engine/suffix_index.h"

namespace nibble {

class SuffixDrafter : public Drafter {
 public:
  explicit SuffixDrafter(const SpeculationOptions& options);
  void propose(const Sequence& sequence, int32_t k, std::vector<int32_t>& ids) override;
  void has_ended(const Sequence& sequence) override;
  int64_t bytes_for(int32_t tokens) const override { return SuffixIndex::bytes(tokens); }
  // Of past answers.
  static int64_t bytes(const SpeculationOptions& options);

 private:
  SuffixIndex& own_index(const Sequence& sequence);

  SuffixLimits limits_;
  int32_t max_requests_;
  SuffixIndex past_;
  std::deque<int64_t> starts_;  // of the answers in past_
};

}  // namespace nibble
