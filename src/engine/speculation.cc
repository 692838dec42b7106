#include "engine/speculation.h"

#include <algorithm>

#include "base/check.h"
#include "engine/ngram_drafter.h"
#include "engine/philox.h"
#include "engine/suffix_drafter.h"

namespace nibble {
namespace {

// Something, always as much as may be.
class AnyDrafter : public Drafter {
 public:
  void propose(const Sequence& sequence, int32_t k, std::vector<int32_t>& ids) override {
    ids.assign(k, sequence.tokens.back());
  }
};

}  // namespace

std::shared_ptr<Drafter> make_drafter(const SpeculationOptions& options) {
  using Method = SpeculationOptions::Method;
  if (options.drafter != nullptr) return options.drafter;
  switch (options.method) {
    case Method::kNone:
    case Method::kHead:
      return nullptr;
    case Method::kNgram:
      return std::make_shared<NgramDrafter>(options.ngram_min, options.ngram_max);
    case Method::kSuffix:
      return std::make_shared<SuffixDrafter>(options);
    case Method::kSynthetic:
      return std::make_shared<AnyDrafter>();
  }
  CHECK(false);
}

Speculation::Speculation(const SpeculationOptions& options, int32_t max_drafts)
    : options_(options),
      max_drafts_(max_drafts),
      most_(options.num_tokens),
      uses_head_(options.num_tokens > 0 && options.method == SpeculationOptions::Method::kHead),
      drafter_(options.num_tokens > 0 ? make_drafter(options) : nullptr) {
  counts_.num_places = is_on() ? options.num_tokens : 0;
}

int32_t Speculation::most_of_batch(size_t num_seqs) const {
  int32_t most = options_.num_tokens;
  for (const SpeculationOptions::OfBatch& batch : options_.by_batch)
    if (static_cast<size_t>(batch.num_seqs) <= num_seqs) most = batch.num_tokens;
  return std::min(most, options_.num_tokens);
}

// None where the sequence does not decode. The last token of an answer follows a draft, or none.
int32_t Speculation::most_drafts(const Sequence& s) const {
  if (s.num_left() != 1 || !s.is_scored() || !s.forks.empty() || s.is_held) return -1;
  return std::min({most_, s.request.max_drafts, s.request.max_tokens - s.num_output() - 1});
}

void Speculation::enter_part(Sequence& s) const {
  s.draft_part = s.request.watcher == nullptr ? 0 : s.request.watcher->part();
  if (!s.draft_rates()) s.draft_rates() = rates_[s.draft_part];
}

void Speculation::choose_lengths() {
  if (options_.is_adaptive) {
    lengths_.choose(decoding_, max_drafts_, times_, draft_times_);
  } else {
    for (Sequence* s : decoding_) s->num_wanted = static_cast<int32_t>(s->drafts.size());
  }
}

void Speculation::draft(std::span<const std::unique_ptr<Sequence>> running, bool may_verify) {
  if (!is_on()) return;
  decoding_.clear();
  most_ = most_of_batch(running.size());
  for (const auto& sequence : running) {
    Sequence& s = *sequence;
    s.drafts.clear();
    s.num_verified = 0;
    const int32_t k = most_drafts(s);
    if (uses_head_) {  // their number is known, and not yet what they are
      if (may_verify && k > 0 && s.draft_row >= 0) s.num_verified = std::min(k, s.num_wanted);
      continue;
    }
    s.num_wanted = 0;
    if (k < 0) continue;
    decoding_.push_back(&s);
    if (k > 0) drafter_->propose(s, k, s.drafts);
    if (!s.drafts.empty()) enter_part(s);
  }
  if (uses_head_) return;
  choose_lengths();
  for (Sequence* s : decoding_) s->num_verified = may_verify ? s->num_wanted : 0;
}

void Speculation::choose(std::span<const std::unique_ptr<Sequence>> running) {
  decoding_.clear();
  most_ = most_of_batch(running.size());
  for (const auto& sequence : running) {
    Sequence& s = *sequence;
    s.num_wanted = 0, s.draft_row = -1;
    const int32_t k = most_drafts(s);
    if (k < 0) continue;
    decoding_.push_back(&s);
    s.drafts.assign(std::max(k, 0), 0);
    enter_part(s);
  }
  choose_lengths();
  for (Sequence* s : decoding_) s->drafts.clear();
}

int32_t Speculation::taken(const Sequence& sequence, int32_t i, int32_t drawn) {
  if (!is_made_up()) return drawn;
  const int32_t draft = sequence.drafts[i];
  if (comes_true(sequence, i, draft, drawn)) return draft;
  if (drawn != draft) return drawn;
  return draft > 0 ? draft - 1 : 1;
}

bool Speculation::comes_true(const Sequence& sequence, int32_t i, int32_t drafted, int32_t id) {
  if (!is_made_up()) return drafted == id;
  const std::vector<double>& rates = options_.synthetic_rates;
  const double before = i > 0 ? rates[i - 1] : 1.0;
  return uniform(sequence.sampling.seed, num_made_up_++, kMakesUp) * before < rates[i];
}

void Speculation::learn(Sequence& sequence, int32_t num_verified, int32_t num_new) {
  if (!is_on()) return;
  const int32_t first = sequence.length() - num_new;
  const int32_t num_known = std::min(num_new, static_cast<int32_t>(sequence.drafts.size()));
  int32_t num_true = 0, num_seen = 0;
  for (bool came_true = true; came_true && num_seen < num_known; ++num_seen) {
    const int32_t i = num_seen, id = sequence.tokens[first + i];
    came_true = i < num_verified ? id == sequence.drafts[i]
                                 : comes_true(sequence, i, sequence.drafts[i], id);
    sequence.draft_rates()->learn(i, came_true);
    rates_[sequence.draft_part].learn(i, came_true);
    if (came_true && i < num_verified) ++num_true, ++counts_.accepted_at[i];
  }
  if (sequence.draft_rates()) sequence.draft_rates()->forget(num_seen);
  counts_.num_drafts += num_verified > 0;
  counts_.num_draft_tokens += num_verified;
  counts_.num_accepted_tokens += num_true;
}

void Speculation::learn_first(Sequence& sequence, int32_t drafted, int32_t token) {
  const bool came_true = comes_true(sequence, 0, drafted, token);
  if (sequence.draft_rates()) sequence.draft_rates()->learn(0, came_true);
  rates_[sequence.draft_part].learn(0, came_true);
}

void Speculation::has_ended(const Sequence& sequence) {
  if (drafter_ != nullptr) drafter_->has_ended(sequence);
}

}  // namespace nibble
