// Speculation: drafts for all sequences of a step, how many of them it verifies, and what came of
// them.
//
// A draft is verified by drawing from the model's own distribution behind it what would have been
// drawn there in any case, by the same random number: it comes true where that is the draft. So an
// id x is taken with its probability p(x), and else one of the others is drawn, in their
// proportions: what rejection sampling does with a draft that is certain of itself. The text is
// that without drafts, token for token, at any temperature; nothing that is asked of a token
// (masks, penalties, log-probabilities) knows of drafts at all. Drafts that a head has drawn by
// random numbers of their own go by the rules of verification.h instead (SpeculationOptions).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/draft_lengths.h"
#include "engine/drafter.h"
#include "engine/sequence.h"
#include "engine/speculation_counts.h"
#include "engine/speculation_options.h"

namespace nibble {

class Speculation {
 public:
  // A step has room for max_drafts drafts.
  Speculation(const SpeculationOptions& options, int32_t max_drafts);
  bool is_on() const { return drafter_ != nullptr || uses_head_; }
  bool uses_head() const { return uses_head_; }

  // Before a plan: drafts for the sequences that decode. `may_verify` false: the step has begun
  // already, with none.
  void draft(std::span<const std::unique_ptr<Sequence>> running, bool may_verify);
  // Behind a step, of a head: how many drafts each sequence wants in the next, before it is fed.
  void choose(std::span<const std::unique_ptr<Sequence>> running);
  // The id that is taken where draft i was to be verified and `drawn` was drawn: that one, unless
  // truth is made up.
  int32_t taken(const Sequence& sequence, int32_t i, int32_t drawn);
  // Behind a step that verified `num_verified` drafts: it gave the last `num_new` tokens. Says how
  // good drafts are, also of the first that was not verified.
  void learn(Sequence& sequence, int32_t num_verified, int32_t num_new);
  // Of a head: what its first draft would have been where `token` came.
  void learn_first(Sequence& sequence, int32_t drafted, int32_t token);
  void has_ended(const Sequence& sequence);
  // What comes true is made up, whatever was drafted.
  bool is_made_up() const { return !options_.synthetic_rates.empty(); }
  // A step that only decoded took that long.
  void add_time(int32_t tokens, double seconds) { times_.add(tokens, seconds); }
  // Drafts of chains of up to `length` took that long.
  void add_draft_time(int32_t length, double seconds) { draft_times_.add(length, seconds); }

  int64_t bytes_for(int32_t tokens) const { return drafter_ ? drafter_->bytes_for(tokens) : 0; }
  const SpeculationCounts& counts() const { return counts_; }

 private:
  bool comes_true(const Sequence& sequence, int32_t i, int32_t drafted, int32_t id);
  int32_t most_of_batch(size_t num_seqs) const;
  int32_t most_drafts(const Sequence& sequence) const;
  void enter_part(Sequence& sequence) const;
  void choose_lengths();

  SpeculationOptions options_;
  int32_t max_drafts_;
  int32_t most_;  // drafts of one sequence, where as many run as do
  bool uses_head_;
  std::shared_ptr<Drafter> drafter_;  // none: a head drafts, or nobody
  StepTimes times_;
  DraftTimes draft_times_;
  DraftLengths lengths_;
  // Of all sequences, by the part of the answer: what a new one begins with.
  std::array<DraftRates, TokenWatcher::kParts> rates_;
  std::vector<Sequence*> decoding_;  // in draft()
  SpeculationCounts counts_;
  int64_t num_made_up_ = 0;
};

}  // namespace nibble
