// How tokens are drafted, so that a step verifies several of them; vLLM's --speculative-config.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/verification.h"
#include "models/draft_head.h"

namespace nibble {

class Drafter;

struct SpeculationOptions {
  enum class Method : uint8_t {
    kNone,
    kNgram,     // what followed the last few tokens where they came before in the same text
    kSuffix,    // the same of any length, by how often, and in past answers too
    kHead,      // a head that reads the model's hidden rows
    kSynthetic  // nothing: for what comes true at given rates without a drafter
  };
  Method method = Method::kNone;
  int32_t num_tokens = 0;  // drafts of one sequence in one step, at most
  // Fewer where many sequences run: from batches of so many on. By size; none: always num_tokens.
  struct OfBatch {
    int32_t num_seqs, num_tokens;
    bool operator==(const OfBatch&) const = default;
  };
  std::vector<OfBatch> by_batch = {};
  bool is_adaptive =
      true;  // fewer, or none, where that is faster; else always as many as there are

  int32_t ngram_min = 5, ngram_max = 5;  // tokens that must have come before; the longest first

  int32_t suffix_max_depth = 24;        // tokens of a match that count
  int32_t suffix_max_requests = 10000;  // past answers that are kept
  double suffix_max_factor = 1.0;       // drafts for each token of the match
  double suffix_min_token_probability = 0.1;

  // Not empty: drafts come true at these rates, whatever they are, to measure speed alone. That the
  // first i + 1 all come true; one for each draft.
  std::vector<double> synthetic_rates = {};

  // Of kHead: its checkpoint, without a directory: the model's own; where its keys and values lie,
  // of one layer, known before it is loaded.
  DraftHeadSource head_source = {};
  std::optional<DenseFormats> head_dense = {};  // encoded on load; else as the model's own
  bool draws_drafts = false;  // at the request's temperature; else they are the likeliest ids
  // Of drawn drafts; none: they are drawn by the numbers that draw the ids they foretell.
  std::optional<VerificationRule> drawn_rule = {};
  LayerGroup head_group = {};
  int32_t head_vocab_size = 0;
  int64_t head_row_bytes = 0;  // of the model's rows of one token that it reads, as float32
  std::shared_ptr<DraftHead> head = {};

  std::shared_ptr<Drafter> drafter = {};  // instead of the method's own
};

}  // namespace nibble
