#include "engine/scheduler.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace nibble {
namespace {

template <typename Queue>
void insert(Queue& queue, std::unique_ptr<Sequence> sequence) {
  const auto at = std::upper_bound(queue.begin(), queue.end(), sequence, goes_before);
  queue.insert(at, std::move(sequence));
}

template <typename Queue>
std::unique_ptr<Sequence> take_out(Queue& queue, typename Queue::iterator at) {
  std::unique_ptr<Sequence> sequence = std::move(*at);
  queue.erase(at);
  return sequence;
}

bool decodes(const Sequence& sequence) { return sequence.num_left() == 1 && !sequence.is_held; }

bool is_released(const std::unique_ptr<Sequence>& sequence) {
  return sequence->is_held && sequence->mask_state() != MaskState::kPending;
}

}  // namespace

Scheduler::Scheduler(KvCache& kv, const SchedulerLimits& limits) : kv_(kv), limits_(limits) {
  CHECK(limits.max_tokens >= limits.max_num_seqs && limits.max_score_rows > 0);
  running_.reserve(limits.max_num_seqs);
  chunks_.reserve(limits.max_num_seqs);
}

void Scheduler::add(std::unique_ptr<Sequence> sequence) { insert(waiting_, std::move(sequence)); }

const std::vector<Chunk>& Scheduler::plan(bool admits) {
  chunks_.clear();
  num_tokens_ = 0;
  is_reserved_ahead_ = false;
  if (admits) make_way();
  Budget budget{.tokens = limits_.max_tokens,
                .score_rows = limits_.max_score_rows,
                .drafts = limits_.max_drafts,
                .decodes = 0};
  for (const auto& sequence : running_) budget.decodes += decodes(*sequence);
  const int64_t preemptions_before = counts_.preemptions;
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.is_held) continue;
    if (decodes(sequence)) --budget.decodes;
    Chunk chunk = next_chunk(sequence, budget);
    if (chunk.length == 0) continue;
    // Only later ones are taken out, up to this one itself: what is planned already stays.
    if (!reserve_or_preempt(chunk, budget)) break;
    take(chunk, budget);
  }
  if (admits && counts_.preemptions == preemptions_before) admit(budget);
  return chunks_;
}

// As much of the sequence as the budget allows. Rows with logits: all whose log-probabilities are
// still to be reported, or the last one where the chunk reaches the sequence's end.
Chunk Scheduler::next_chunk(Sequence& sequence, const Budget& budget) const {
  Chunk chunk{.sequence = &sequence, .begin = sequence.num_computed, .length = 0, .num_out = 0};
  chunk.length = std::min(sequence.num_left(), budget.tokens - budget.decodes);
  if (!limits_.chunked && chunk.length < sequence.num_left()) chunk.length = 0;
  if (kv_.states().exist()) chunk.length = with_states(sequence, chunk.length);
  if (!sequence.forks.empty()) {
    chunk.length = std::min(chunk.length, sequence.num_prompt - 1 - chunk.begin);
  }
  if (sequence.is_scored()) {
    chunk.num_out = chunk.length == sequence.num_left() ? 1 : 0;
    if (chunk.num_out == 0) return chunk;
    const int32_t room = std::min(budget.tokens - budget.decodes - chunk.length, budget.drafts);
    chunk.num_drafts = std::min(sequence.num_verified, room);
    chunk.length += chunk.num_drafts;
    chunk.num_out += chunk.num_drafts;
    return chunk;
  }
  const int32_t first_row = std::max(chunk.begin, sequence.num_scored);
  chunk.length = std::min(chunk.length, first_row - chunk.begin + budget.score_rows);
  chunk.num_out = std::max(0, chunk.begin + chunk.length - first_row);
  return chunk;
}

// Where there are states, a step ends where one is to be kept, and before a token whose mask may
// come too late for it: without the last token, there would be no state of the others.
int32_t Scheduler::with_states(const Sequence& sequence, int32_t length) const {
  if (limits_.chunked) length = kv_.cut(sequence.slot, length);
  const bool is_last = length == sequence.num_left() && length > 1;
  return is_last && sequence.mask_state() == MaskState::kPending ? length - 1 : length;
}

void Scheduler::take(const Chunk& chunk, Budget& budget) {
  budget.tokens -= chunk.length;
  budget.drafts -= chunk.num_drafts;
  if (!chunk.sequence->is_scored()) budget.score_rows -= chunk.num_out;
  num_tokens_ += chunk.length;
  chunks_.push_back(chunk);
}

bool Scheduler::reserve_or_preempt(Chunk& chunk, Budget& budget) {
  if (kv_.reserve(chunk.sequence->slot, chunk.length)) return true;
  chunk.length -= chunk.num_drafts;
  chunk.num_out -= std::exchange(chunk.num_drafts, 0);
  while (!kv_.reserve(chunk.sequence->slot, chunk.length)) {
    Sequence* const last = running_.back().get();
    if (last != chunk.sequence && decodes(*last)) --budget.decodes;
    preempt_last();
    if (last == chunk.sequence) return false;
  }
  return true;
}

void Scheduler::hold(size_t chunk) {
  keep(chunk, chunks_[chunk].length - 1 - chunks_[chunk].num_drafts);
  chunks_[chunk].sequence->is_held = true;
}

// A state is that behind all tokens of a step. Of fewer there is none, unless they are replayed:
// they are computed again, from the state before the step.
void Scheduler::keep(size_t chunk, int32_t length) {
  Chunk& c = chunks_[chunk];
  CHECK(length >= 0 && length <= c.length);
  if (kv_.states().exist() && length < c.length) {
    if (num_tokens_ > limits_.max_replayed) length = 0;
    if (length > 0) kv_.shorten(c.sequence->slot, length);
  }
  c.length = length;
}

bool Scheduler::release_held() {
  const bool any = has_released();
  for (auto& sequence : running_) {
    if (is_released(sequence)) sequence->is_held = false;
  }
  return any;
}

bool Scheduler::has_released() const { return std::ranges::any_of(running_, is_released); }

int32_t Scheduler::num_held() const {
  return static_cast<int32_t>(std::ranges::count(running_, true, &Sequence::is_held));
}

bool Scheduler::reserve_ahead() {
  is_reserved_ahead_ = std::ranges::all_of(
      chunks_, [&](const Chunk& c) { return kv_.reserve_ahead(c.sequence->slot, c.length); });
  return is_reserved_ahead_;
}

void Scheduler::preempt_last() {
  stop(*running_.back());
  insert(waiting_, take_out(running_, running_.end() - 1));
  ++counts_.preemptions;
}

// Where the next request has a better priority than running ones, and needs their slot or their
// pages, and these would be enough: takes them.
void Scheduler::make_way() {
  if (waiting_.empty()) return;
  const Sequence& next = *waiting_.front();
  const auto goes_after = [&](const std::unique_ptr<Sequence>& running) {
    return running->request.priority > next.request.priority &&
           goes_before(waiting_.front(), running);
  };
  int64_t needed = kv_.pages_for(next.length());
  bool gives = true;  // they are taken from the last on, up to one that keeps its pages
  for (auto at = running_.rbegin(); at != running_.rend(); ++at) {
    const Sequence& running = **at;
    const int64_t held = kv_.held_pages(running.slot);
    gives = gives && goes_after(*at);
    needed += gives ? -held : kv_.pages_for(running.length()) + 1 - held;
  }
  if (needed > kv_.free_pages()) return;
  while (!running_.empty() && goes_after(running_.back()) &&
         (num_running() == limits_.max_num_seqs || !has_room(next))) {
    preempt_last();
  }
}

void Scheduler::admit(Budget& budget) {
  while (!waiting_.empty() && num_running() < limits_.max_num_seqs &&
         budget.tokens > budget.decodes) {
    if (!start(*waiting_.front(), budget)) return;
    insert(running_, take_out(waiting_, waiting_.begin()));
  }
}

// Gives the sequence a slot, what the prefix cache has of it, and the pages of its first chunk;
// false, with nothing changed, where it must wait.
bool Scheduler::start(Sequence& sequence, Budget& budget) {
  sequence.slot = kv_.open();
  CHECK(sequence.slot != KvCache::kNoSlot);
  sequence.num_computed =
      kv_.adopt(sequence.slot, sequence.tokens, sequence.request.cache_salt, sequence.is_scored());
  sequence.lacks_row = limits_.needs_last_row && sequence.num_computed > 0;
  if (sequence.lacks_row && !kv_.states().exist()) {
    kv_.rollback(sequence.slot, 1);
    --sequence.num_computed;
    sequence.lacks_row = false;
  }
  sequence.num_fed = sequence.num_computed;
  if (limits_.needs_last_row && !kv_.states().exist())
    kv_.wrote(sequence.slot, sequence.num_fed, sequence.tokens);
  if (sequence.can_fork()) {  // there is nothing to share but what is cached already
    for (auto& other : std::exchange(sequence.forks, {})) add(std::move(other));
  }
  const Chunk chunk = next_chunk(sequence, budget);
  // Window pages may be missing where memory is tight.
  if (chunk.length == 0 || !has_room(sequence) || !kv_.reserve(sequence.slot, chunk.length)) {
    stop(sequence);
    return false;
  }
  if (sequence.times.started == SteadyTime{}) {
    sequence.times.started = std::chrono::steady_clock::now();
  }
  if (sequence.num_cached < 0) {
    sequence.num_cached = sequence.num_computed;
    counts_.prefix_queries += sequence.length();
    counts_.prefix_hits += sequence.num_cached;
  }
  take(chunk, budget);
  return true;
}

void Scheduler::stop(Sequence& sequence) {
  kv_.close(sequence.slot, sequence.tokens);
  sequence.slot = KvCache::kNoSlot;
  sequence.num_computed = sequence.num_verified = 0;
  sequence.drafts.clear();
  sequence.is_held = false;  // it has other things to do first
}

// Whether all tokens so far fit beside what the running sequences still need for theirs, with one
// page to grow for each: a sequence that would soon be taken out again need not start.
bool Scheduler::has_room(const Sequence& sequence) const {
  int64_t needed = kv_.pages_for(sequence.length());
  if (sequence.slot != KvCache::kNoSlot) needed -= kv_.held_pages(sequence.slot);
  for (const auto& running : running_) {
    needed += kv_.pages_for(running->length()) + 1 - kv_.held_pages(running->slot);
  }
  return needed <= kv_.free_pages();
}

void Scheduler::commit() {
  for (const Chunk& chunk : chunks_) {
    kv_.commit(chunk.sequence->slot, chunk.length, chunk.sequence->tokens,
               is_reserved_ahead_ ? 1 : 0);
    chunk.sequence->num_computed += chunk.length;
    if (!chunk.sequence->forks.empty() && chunk.sequence->can_fork()) fork(*chunk.sequence);
  }
}

// Its forks go on from the same pages; those for which there is no slot wait, and find what is
// cached.
void Scheduler::fork(Sequence& sequence) {
  for (auto& other : std::exchange(sequence.forks, {})) {
    other->num_cached = sequence.num_cached;  // of the same prompt, which is asked for once
    other->slot = kv_.fork(sequence.slot);
    if (other->slot == KvCache::kNoSlot) {
      add(std::move(other));
      continue;
    }
    other->num_computed = other->num_fed = sequence.num_computed;  // fed before they go on
    other->times.started = sequence.times.started;
    insert(running_, std::move(other));
  }
}

std::unique_ptr<Sequence> Scheduler::remove(RequestId id) {
  const auto has_id = [id](const auto& sequence) { return sequence->id == id; };
  std::unique_ptr<Sequence> sequence;
  if (auto r = std::find_if(running_.begin(), running_.end(), has_id); r != running_.end()) {
    sequence = take_out(running_, r);
    stop(*sequence);
  } else if (auto w = std::find_if(waiting_.begin(), waiting_.end(), has_id); w != waiting_.end()) {
    sequence = take_out(waiting_, w);
  } else {
    const auto take_fork = [&](const std::unique_ptr<Sequence>& first) {
      const auto f = std::find_if(first->forks.begin(), first->forks.end(), has_id);
      if (f != first->forks.end()) sequence = take_out(first->forks, f);
      return sequence != nullptr;
    };
    std::ignore = std::any_of(running_.begin(), running_.end(), take_fork) ||
                  std::any_of(waiting_.begin(), waiting_.end(), take_fork);
  }
  if (sequence != nullptr && !sequence->forks.empty()) {  // the next one leads the others
    std::vector<std::unique_ptr<Sequence>> others = std::exchange(sequence->forks, {});
    std::unique_ptr<Sequence> first = take_out(others, others.begin());
    first->forks = std::move(others);
    add(std::move(first));
  }
  return sequence;
}

std::unique_ptr<Sequence> Scheduler::remove_expired(SteadyTime now) {
  const Sequence* found = nullptr;
  const auto find = [&](const std::unique_ptr<Sequence>& sequence) {
    const auto& deadline = sequence->request.deadline;
    if (deadline && *deadline <= now) found = sequence.get();
    return found != nullptr;
  };
  const auto find_all = [&](const std::unique_ptr<Sequence>& sequence) {
    return find(sequence) || std::any_of(sequence->forks.begin(), sequence->forks.end(), find);
  };
  std::ignore = std::any_of(running_.begin(), running_.end(), find_all) ||
                std::any_of(waiting_.begin(), waiting_.end(), find_all);
  return found == nullptr ? nullptr : remove(found->id);
}

std::unique_ptr<Sequence> Scheduler::remove_any() {
  if (!running_.empty()) return remove(running_.back()->id);
  if (!waiting_.empty()) return remove(waiting_.back()->id);
  return nullptr;
}

int32_t Scheduler::num_waiting() const {
  size_t n = waiting_.size();
  for (const auto& sequence : running_) n += sequence->forks.size();
  for (const auto& sequence : waiting_) n += sequence->forks.size();
  return static_cast<int32_t>(n);
}

}  // namespace nibble
