#include <algorithm>
#include <chrono>
#include <limits>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "engine/engine_impl.h"
#include "engine/philox.h"

namespace nibble {
namespace {

constexpr int32_t kNoDraft = -1, kNotChosen = -1;
constexpr std::chrono::milliseconds kMaskPatience{1};  // in a step

}  // namespace

// Sequences whose masks are not there yet are held; unless there is nothing else to do, when the
// first mask is waited for.
void Engine::Impl::hold_unmasked() {
  const std::vector<Chunk>& chunks = scheduler_.chunks();
  const auto lacks_mask = [](const Chunk& chunk) {
    return chunk.reaches_end() && chunk.sequence->mask_state() == MaskState::kPending;
  };
  while (std::ranges::all_of(chunks, lacks_mask) && !scheduler_.has_released()) {
    std::unique_lock lock(mutex_);
    if (!wait_for_inbox(lock) || !std::exchange(inbox_.mask_came, false)) break;
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (lacks_mask(chunks[i])) scheduler_.hold(i);
  }
}

// Reports log-probabilities of prompts, samples, keeps what came true of what was drafted, and
// takes out what has ended.
void Engine::Impl::finish() {
  hold_unmasked();
  ++counters_.num_steps;
  counters_.metrics.iteration_tokens.add(blocks_[turn_].step().num_tokens);
  ended_.clear();
  if (gpu_ != nullptr && begun_.empty()) fetch_rows();
  waits_until_ = std::chrono::steady_clock::now() + kMaskPatience;
  int64_t row = 0;
  for (size_t i = 0; i < scheduler_.chunks().size(); ++i) {
    const Chunk chunk = scheduler_.chunks()[i];  // as planned
    const Sequence& sequence = *chunk.sequence;
    while (!begun_.empty() && begun_[row].id != sequence.id) ++row;  // of one that has ended
    counters_.prompt_tokens +=
        std::clamp(sequence.num_prompt - chunk.begin, int32_t{0}, chunk.length);
    if (!advance(i, row)) ended_.push_back(sequence.id);
    row += chunk.num_out;
  }
  replay();
  scheduler_.commit();
  const HeadDrafter::Spent drafting = head_ ? head_->spent() : HeadDrafter::Spent{};
  const SteadyTime now = std::chrono::steady_clock::now();
  const Step step = blocks_[turn_].step();
  const bool is_odd = (gpu_ != nullptr && gpu_->was_first()) || cx_.tap;  // takes longer
  if (step_began_ != SteadyTime{} && step.num_tokens == step.num_out && !is_odd) {
    const double seconds = std::chrono::duration<double>(now - step_began_).count();
    speculation_.add_time(step.num_tokens, seconds - drafting.seconds);
    if (drafting.passes > 0 && !drafting.has_read)
      speculation_.add_draft_time(drafting.passes, drafting.seconds);
  }
  step_began_ = now;
  if (head_ != nullptr) feed_head();
  remove_ended();
  turn_ = 1 - turn_;
  publish_stats();
  if (log_activity_) log_.after_step(counters_, now);
}

void Engine::Impl::feed_head() {
  for (const HeadDrafter::Seen& seen : head_->seen())
    for (const auto& s : scheduler_.running())
      if (s->id == seen.id) speculation_.learn_first(*s, seen.drafted, seen.token);
  speculation_.choose(scheduler_.running());
  if (take_fed()) {
    head_->take_fed(fed_);
  } else {
    const bool drafts = choose_fed();
    head_->feed(fed_, drafts);
  }
  if (kv_.states().exist()) {
    for (const HeadDrafter::Fed& f : fed_) kv_.copy_tail(f.sequence->slot);
  } else {
    for (const auto& s : scheduler_.running())  // those that forked now among them
      kv_.wrote(s->slot, s->num_fed, s->tokens);
  }
}

// fed_: what of the step's tokens the head was fed ahead has been said; false: it was fed something
// else, or not all that drafts are wanted of, and is fed once more.
bool Engine::Impl::take_fed() {
  fed_.clear();
  if (!std::exchange(is_fed_ahead_, false)) return false;
  const Span* span = blocks_[turn_].step().spans;
  for (const Chunk& c : scheduler_.chunks()) {
    Sequence& s = *c.sequence;
    const int32_t row = span++->q_start, length = HeadDrafter::owed(s);
    for (int32_t i = 0; i < length && !speculation_.is_made_up(); ++i)
      if (gpu_->found(blocks_[turn_], row + i).id != s.tokens[c.begin + i + 1]) return false;
    if (has_ended(s)) s.num_wanted = 0;
    fed_.push_back({&s, c.begin, length, row, s.num_wanted > 0});
  }
  const auto wants = [](const auto& s) { return s->num_wanted > 0; };
  return std::ranges::count_if(scheduler_.running(), wants) ==
         std::ranges::count(fed_, 1, &HeadDrafter::Fed::num_out);
}

// Prompts at once, as others may go on from there, and from the step's own rows; sequences that
// have ended, for the same reason; those that drafts are wanted of, unless the next step has begun
// without; and others before their rows are lost, all together. Whether drafts are wanted.
bool Engine::Impl::choose_fed() {
  fed_.clear();
  const std::vector<Chunk>& chunks = scheduler_.chunks();
  const bool any_must =
      std::ranges::any_of(chunks, [&](const Chunk& c) { return head_->must_feed(*c.sequence); });
  bool any_drafts = false;
  for (size_t i = 0; i < chunks.size(); ++i) {
    Sequence& s = *chunks[i].sequence;
    const bool ended = has_ended(s);
    if (ended) s.num_wanted = 0;
    const int32_t last = ahead_.empty() && s.num_wanted > 0 ? 1 : 0;
    int32_t begin = s.num_fed, owed = HeadDrafter::owed(s);
    if (owed > 0 && s.lacks_row) --begin, ++owed;
    if (head_->is_long(chunks[i].length)) {
      CHECK(begun_.empty() && s.num_fed == chunks[i].begin);
      const int32_t first_row = blocks_[turn_].step().spans[i].q_start;
      fed_.push_back({&s, begin, owed - last, first_row, 0});
      begin += owed - last, owed = last;
    }
    const bool is_text = chunks[i].begin < s.num_prompt || s.num_left() > 1;
    const bool is_due = last > 0 || is_text || (ended && kv_.plan().options.prefix_cache) ||
                        (any_must && head_->may_feed(s));
    if (owed > 0 && is_due) fed_.push_back({&s, begin, owed, HeadDrafter::Fed::kPutBy, last});
    any_drafts |= last > 0;
  }
  if (any_must && !any_drafts) see_drafts();
  return any_drafts;
}

bool Engine::Impl::has_ended(const Sequence& s) const {
  return std::ranges::find(ended_, s.id) != ended_.end();
}

// How good drafts would be of some of the tokens that are fed for other reasons, of sequences that
// go on decoding: the last of them are fed later.
void Engine::Impl::see_drafts() {
  int32_t left = head_->may_see();
  const int32_t share = std::max<int32_t>(1, left / std::max<int32_t>(1, std::ssize(fed_)));
  for (HeadDrafter::Fed& f : fed_) {
    const int32_t n = std::min({share, left, f.length - 1, f.sequence->num_output()});
    const bool decodes = f.sequence->num_left() == 1 && !has_ended(*f.sequence);
    if (f.row != HeadDrafter::Fed::kPutBy || n <= 0 || !decodes) continue;
    f.num_out = n, --f.length;  // what comes behind the last one is not known
    left -= n;
  }
}

// States behind what is kept of the step, in place of those behind drafts that did not come true.
void Engine::Impl::replay() {
  if (!kv_.states().exist() || !begun_.empty()) return;
  Step step = blocks_[turn_].step();
  replayed_.assign(step.spans, step.spans + step.num_spans);
  bool any = false;
  for (size_t i = 0; i < replayed_.size(); ++i) {
    const int32_t kept = scheduler_.chunks()[i].length;
    if (kept == 0 || kept == replayed_[i].q_len) continue;
    replayed_[i].q_len = kept;
    any = true;
  }
  if (!any) return;
  if (feed_ != nullptr) feed_->replay(replayed_);
  if (gpu_ != nullptr) return gpu_->replay(blocks_[turn_], replayed_);
  step.spans = replayed_.data();
  model_.replay(cx_, step, kv_.state());
}

void Engine::Impl::remove_ended() {
  for (const RequestId id : ended_) {
    if (const auto sequence = scheduler_.remove(id)) speculation_.has_ended(*sequence);
  }
}

// What the step's rows from `row` on say of a chunk's sequence; false: it has ended. Memory that
// its watcher or its listener does not get ends it alone.
bool Engine::Impl::advance(size_t i, int64_t row) {
  const Chunk chunk = scheduler_.chunks()[i];
  Sequence& sequence = *chunk.sequence;
  const int64_t end_row = row + chunk.num_out;
  try {
    for (int64_t r = row; !sequence.is_scored() && r < end_row; ++r) {
      if (!score(sequence, r)) return false;
    }
    const bool may_sample = row < end_row && sequence.is_scored() && !sequence.is_held;
    return !may_sample || verify(i, end_row - 1 - chunk.num_drafts);
  } catch (const std::bad_alloc&) {
    scheduler_.keep(i, chunk.length - chunk.num_drafts);
    return report_end(sequence, FinishReason::kError, "no memory is left for this request");
  }
}

// Takes an id from the last row of a chunk that is no draft, and from the rows of drafts for as
// long as they come true; false: the sequence has ended. What did not come true goes.
bool Engine::Impl::verify(size_t i, int64_t row) {
  const Chunk chunk = scheduler_.chunks()[i];
  Sequence& sequence = *chunk.sequence;
  const int32_t length = sequence.length();
  const std::span<const int32_t> drafts(sequence.drafts);
  const bool apart = are_apart(sequence);
  const int32_t num_together = apart && are_together(sequence) ? chunk.num_drafts : 1;
  std::optional<Verified> verified;
  bool goes_on = true;
  for (int32_t d = 0; goes_on; ++d) {
    const bool is_draft = d < chunk.num_drafts;
    const int32_t place = d % num_together;  // among those verified together
    if (!is_draft) verified = {};
    if (is_draft && apart && place == 0)
      verified = verify_apart(sequence, row + d, drafts.subspan(d, num_together));
    const bool is_kept = verified && place < verified->num_kept;
    const int32_t chosen = !verified ? kNotChosen : is_kept ? drafts[d] : verified->next;
    goes_on = sample(sequence, row + d, is_draft ? d : kNoDraft, chosen);
    if (!is_draft || !goes_on || (verified && !is_kept) || sequence.tokens.back() != drafts[d])
      break;
    if (!wait_for_mask(sequence)) break;
  }
  const int32_t num_new = sequence.length() - length;
  speculation_.learn(sequence, chunk.num_drafts, num_new);
  scheduler_.keep(i, chunk.length - chunk.num_drafts + std::max(num_new - 1, 0));
  return goes_on;
}

// Whether its drafts were drawn by random numbers of their own.
bool Engine::Impl::are_apart(const Sequence& s) const {
  return drawn_rule_ && s.request.sampling.temperature > 0 && !s.drafts.empty();
}

// Whether they may be verified all together: what is asked of an id must not follow from those
// before it.
bool Engine::Impl::are_together(const Sequence& s) const {
  return drawn_rule_ == VerificationRule::kBlock && s.request.watcher == nullptr &&
         !has_penalties(s.request.sampling) && s.num_output() >= s.request.min_tokens;
}

// The drafts `ids`, the first of which row `row` is to verify; none where a row has an error.
std::optional<Verified> Engine::Impl::verify_apart(Sequence& s, int64_t row,
                                                   std::span<const int32_t> ids) {
  const size_t n = ids.size();
  const auto first = static_cast<int32_t>(ids.data() - s.drafts.data());
  p_.resize(std::max(p_.size(), n)), q_.resize(std::max(q_.size(), n));
  const Sampler::Masks masks = masks_of(s);
  for (size_t i = 0; i < n; ++i) {
    const std::span<float> logits = logits_row(row + static_cast<int64_t>(i));
    if (!sampler_.find_distribution(logits, s.request.sampling, s.sampling, masks, p_[i]))
      return {};
    q_[i].resize(p_[i].size());
    head_->find_distribution(s, first + static_cast<int32_t>(i), q_[i]);
  }
  const uint64_t seed = s.sampling.seed, index = s.sampling.index;
  return nibble::verify(n > 1 ? *drawn_rule_ : VerificationRule::kStandard,
                        {.p = {p_.data(), n}, .q = {q_.data(), n}, .ids = ids},
                        uniform(seed, index, kKeepsDrafts), uniform(seed, index, kDrawsOther));
}

// Whether the mask for what follows a draft is there, or comes soon. Without it what was computed
// behind the draft is lost; the text is the same.
bool Engine::Impl::wait_for_mask(const Sequence& sequence) {
  while (sequence.mask_state() == MaskState::kPending) {
    std::unique_lock lock(mutex_);
    const auto came = [this] { return inbox_.mask_came; };
    if (!wake_.wait_until(lock, waits_until_, came)) return false;
    inbox_.mask_came = false;
  }
  return true;
}

// Rows that the host must see come to it one after the other, while it looks at the first.
void Engine::Impl::fetch_rows() {
  wanted_.clear();
  if (!ahead_.empty()) return;  // then none must
  int64_t row = 0;
  for (size_t i = 0; i < scheduler_.chunks().size(); ++i) {
    const Chunk& c = scheduler_.chunks()[i];
    const Sequence& s = *c.sequence;
    const bool is_seen = !s.is_held && (!plain_[i] || are_apart(s));
    for (int32_t r = 0; is_seen && r < c.num_out; ++r) wanted_.push_back(row + r);
    row += c.num_out;
  }
  gpu_->fetch(wanted_);
}

std::span<float> Engine::Impl::logits_row(int64_t row) {
  if (split_sampler_ != nullptr) return feed_->rows().whole(row);
  if (gpu_ != nullptr) return gpu_->logits(row);
  const int64_t vocab = logits_.dim(1);
  CHECK(row < logits_.dim(0));
  return {logits_.as<float>() + row * vocab, static_cast<size_t>(vocab)};
}

// Reports the next prompt position; false: the sequence has ended.
bool Engine::Impl::score(Sequence& sequence, int64_t row) {
  const int32_t position = sequence.num_scored++, k = sequence.request.prompt_logprobs;
  prompt_logprobs_.position = position;
  prompt_logprobs_.id = sequence.tokens[position];
  const int32_t next = position + 1 < sequence.num_prompt ? sequence.tokens[position + 1] : -1;
  const bool is_finite = split_sampler_ != nullptr
                             ? split_sampler_->score(row, next, k, prompt_logprobs_)
                             : sampler_.score(logits_row(row), next, k, prompt_logprobs_);
  if (!is_finite) return report_end(sequence, FinishReason::kError, kNotNumbers);
  sequence.request.on_prompt_logprobs(prompt_logprobs_);
  return true;
}

// For the next id of a sequence; bits_ holds those allowed.
Sampler::Masks Engine::Impl::masks_of(const Sequence& sequence) {
  const Request& request = sequence.request;
  Sampler::Masks masks;
  if (request.watcher != nullptr) {
    std::fill(bits_.begin(), bits_.end(), ~uint32_t{0});
    if (request.watcher->mask(bits_)) masks.allowed = bits_;
  }
  if (sequence.num_output() < request.min_tokens) masks.banned = request.stop_ids;
  return masks;
}

// What the GPU has found for every row.
Sampler::Sampled Engine::Impl::found(int64_t row) {
  output_.top.clear();
  const ops::Greedy found = gpu_->found(blocks_[turn_], row);
  if (found.id == ops::Greedy::kNotFinite) {
    if (!cx_.left_out.empty()) return {.id = 0};  // they mean nothing
    return {.error = kNotNumbers};
  }
  if (found.id == ops::Greedy::kNone) return {.error = kAllMasked};
  return {.id = found.id, .logprob = found.logprob};
}

Sampler::Sampled Engine::Impl::sampled(const Sequence& sequence, int64_t row) {
  const SamplingParams& params = sequence.request.sampling;
  const Sampler::Masks masks = masks_of(sequence);
  if (split_sampler_ != nullptr)
    return split_sampler_->sample(row, params, sequence.sampling, masks, output_.top);
  if (gpu_ != nullptr && is_found_on_gpu(params, masks)) return found(row);
  return sampler_.sample(logits_row(row), params, sequence.sampling, masks, output_.top);
}

// Appends one id and reports it; false: the sequence has ended. `draft`: the draft that it is to
// verify, or kNoDraft; `chosen`: the id, where verification has chosen it.
bool Engine::Impl::sample(Sequence& sequence, int64_t row, int32_t draft, int32_t chosen) {
  const Request& request = sequence.request;
  if (request.max_tokens == 0) return report_end(sequence, FinishReason::kLength, "");
  if (sequence.mask_state() == MaskState::kFailed) {
    return report_end(sequence, FinishReason::kError, request.watcher->fault(), true);
  }
  Sampler::Sampled sampled;
  if (chosen == kNotChosen)
    sampled = this->sampled(sequence, row);
  else if (request.sampling.logprobs >= 0)
    sampled = sampler_.take(logits_row(row), request.sampling, chosen, output_.top);
  else
    output_.top.clear(), sampled.id = chosen;
  if (sampled.error != nullptr) {
    return report_end(sequence, FinishReason::kError, sampled.error, sampled.error == kAllMasked);
  }

  if (draft != kNoDraft) sampled.id = speculation_.taken(sequence, draft, sampled.id);
  sequence.append(sampled.id);
  ++counters_.generation_tokens;
  const SteadyTime now = std::chrono::steady_clock::now();
  counters_.metrics.on_token(sequence.times, now);
  const bool stops = std::ranges::find(request.stop_ids, sampled.id) != request.stop_ids.end();
  const bool told =
      request.watcher != nullptr && request.watcher->accept(sampled.id) == Watch::kStop;
  output_.id = sampled.id;
  output_.logprob = sampled.logprob;
  output_.cached_tokens = sequence.num_cached;
  output_.finish = stops || told                                 ? FinishReason::kStop
                   : sequence.num_output() == request.max_tokens ? FinishReason::kLength
                                                                 : FinishReason::kNone;
  const bool goes_on = output_.finish == FinishReason::kNone;
  if (!goes_on) {
    counters_.metrics.on_end(sequence.times, output_.finish, sequence.num_prompt,
                             sequence.num_output(), now);
  }
  request.on_output(output_);
  return goes_on;
}

// The last event of a sequence, without a token. Returns false, as its callers do.
bool Engine::Impl::report_end(const Sequence& sequence, FinishReason reason,
                              const std::string& error, bool is_bad_request) {
  counters_.metrics.on_end(sequence.times, reason, sequence.num_prompt, sequence.num_output(),
                           std::chrono::steady_clock::now());
  sequence.request.on_output({.finish = reason, .error = error, .is_bad_request = is_bad_request});
  return false;
}

}  // namespace nibble
