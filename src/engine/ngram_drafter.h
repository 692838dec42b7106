// NgramDrafter: what follows the last few tokens of a sequence is drafted to be what followed them
// before. vLLM's "ngram" (prompt lookup): the longest of the last ngram_max to ngram_min tokens
// that are found, where they came first. It keeps nothing: the tokens are looked through each time.
#pragma once

#include "engine/drafter.h"

namespace nibble {

class NgramDrafter : public Drafter {
 public:
  NgramDrafter(int32_t min, int32_t max) : min_(min), max_(max) {}
  void propose(const Sequence& sequence, int32_t k, std::vector<int32_t>& ids) override;

 private:
  int32_t min_, max_;
};

}  // namespace nibble
