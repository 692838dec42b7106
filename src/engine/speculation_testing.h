// ScriptedDrafter: knows how texts go on, and is right or wrong on command.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "engine/drafter.h"
#include "engine/engine_testing.h"

namespace nibble {

class ScriptedDrafter : public Drafter {
 public:
  // Draft i of a step is right where bit i of the pattern is set, as are all behind the last bit
  // of ~0.
  ScriptedDrafter(const std::vector<Request>& requests, const std::vector<Transcript>& answers,
                  uint32_t pattern)
      : pattern_(pattern) {
    take(requests, answers);
  }
  // In step i, as often as there are some, the first right[i] drafts are; below 0: none is made.
  ScriptedDrafter(const std::vector<Request>& requests, const std::vector<Transcript>& answers,
                  std::vector<int32_t> right)
      : right_(std::move(right)) {
    take(requests, answers);
  }

  void propose(const Sequence& sequence, int32_t k, std::vector<int32_t>& ids) override {
    uint32_t pattern = pattern_;
    if (!right_.empty()) {
      const int32_t right = right_[num_calls_++ % right_.size()];
      if (right < 0) return;
      pattern = (1u << right) - 1;
    }
    const auto known = texts_.find(sequence.sampling.seed);
    if (known == texts_.end()) return;
    const std::vector<int32_t>& text = known->second;
    for (int32_t i = 0; i < k; ++i) {
      const size_t at = sequence.tokens.size() + i;
      const int32_t id = at < text.size() ? text[at] : 0;
      const bool is_right = (pattern >> i & 1) != 0;
      ids.push_back(is_right ? id : id ^ 1);
    }
  }

 private:
  void take(const std::vector<Request>& requests, const std::vector<Transcript>& answers) {
    for (size_t i = 0; i < requests.size(); ++i) {
      std::vector<int32_t>& text = texts_[requests[i].sampling.seed.value()];
      text = requests[i].prompt;
      text.insert(text.end(), answers[i].ids.begin(), answers[i].ids.end());
    }
  }

  std::map<uint64_t, std::vector<int32_t>> texts_;  // by seed
  uint32_t pattern_ = 0;
  std::vector<int32_t> right_;
  size_t num_calls_ = 0;
};

// With as many drafts as there are, always.
inline EngineOptions speculative(EngineOptions options, std::shared_ptr<Drafter> drafter,
                                 int32_t k) {
  options.speculation = {.num_tokens = k, .is_adaptive = false, .drafter = std::move(drafter)};
  return options;
}

}  // namespace nibble
