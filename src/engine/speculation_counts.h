// What became of drafted tokens.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "engine/request.h"

namespace nibble {

struct SpeculationCounts {
  int64_t num_drafts = 0;  // times that drafts of a sequence were verified
  int64_t num_draft_tokens = 0;
  int64_t num_accepted_tokens = 0;
  std::array<int64_t, kMaxDrafts> accepted_at = {};  // of them, by place
  int32_t num_places = 0;                            // 0: nothing is ever drafted

  SpeculationCounts& operator+=(const SpeculationCounts& more) { return add(more, 1); }
  SpeculationCounts operator-(const SpeculationCounts& before) const {
    return SpeculationCounts(*this).add(before, -1);
  }
  // Tokens that such a step gave its sequence.
  double mean_acceptance_length() const {
    if (num_drafts == 0) return 1;
    return 1 + static_cast<double>(num_accepted_tokens) / static_cast<double>(num_drafts);
  }

 private:
  SpeculationCounts& add(const SpeculationCounts& more, int64_t sign) {
    num_drafts += sign * more.num_drafts;
    num_draft_tokens += sign * more.num_draft_tokens;
    num_accepted_tokens += sign * more.num_accepted_tokens;
    for (size_t i = 0; i < accepted_at.size(); ++i) accepted_at[i] += sign * more.accepted_at[i];
    num_places = std::max(num_places, more.num_places);
    return *this;
  }
};

}  // namespace nibble
