// How tokens are drafted, so that a step verifies several of them; vLLM's --speculative-config.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace nibble {

class Drafter;

struct SpeculationOptions {
  enum class Method : uint8_t {
    kNone,
    kNgram,     // what followed the last few tokens where they came before in the same text
    kSuffix,    // the same of any length, by how often, and in past answers too
    kSynthetic  // nothing true: drafts "come true" at given rates, to measure speed alone
  };
  Method method = Method::kNone;
  int32_t num_tokens = 0;  // drafts of one sequence in one step, at most
  bool is_adaptive =
      true;  // fewer, or none, where that is faster; else always as many as there are

  int32_t ngram_min = 5, ngram_max = 5;  // tokens that must have come before; the longest first

  int32_t suffix_max_depth = 24;        // tokens of a match that count
  int32_t suffix_max_requests = 10000;  // past answers that are kept
  double suffix_max_factor = 1.0;       // drafts for each token of the match
  double suffix_min_token_probability = 0.1;

  // Of kSynthetic: that the first i + 1 drafts all come true. One for each draft.
  std::vector<double> synthetic_rates = {};

  std::shared_ptr<Drafter> drafter = {};  // instead of the method's own
};

}  // namespace nibble
