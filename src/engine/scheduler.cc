#include "engine/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace nibble {

Scheduler::Scheduler(KvCache& kv, const SchedulerLimits& limits) : kv_(kv), limits_(limits) {
  CHECK(limits.max_tokens >= limits.max_num_seqs && limits.max_score_rows > 0);
  running_.reserve(limits.max_num_seqs);
  chunks_.reserve(limits.max_num_seqs);
}

void Scheduler::add(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }

const std::vector<Chunk>& Scheduler::plan() {
  chunks_.clear();
  Budget budget{.tokens = limits_.max_tokens, .score_rows = limits_.max_score_rows, .decodes = 0};
  for (const auto& sequence : running_) budget.decodes += sequence->num_left() == 1;
  const int64_t preemptions_before = counts_.preemptions;
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.num_left() == 1) --budget.decodes;
    const Chunk chunk = next_chunk(sequence, budget);
    if (chunk.length == 0) continue;
    // Only the youngest are taken out, up to this one itself: what is planned already stays.
    if (!reserve_or_preempt(chunk, budget)) break;
    take(chunk, budget);
  }
  if (counts_.preemptions == preemptions_before) admit(budget);
  return chunks_;
}

// As much of the sequence as the budget allows. Rows with logits: all whose log-probabilities are
// still to be reported, or the last one where the chunk reaches the sequence's end.
Chunk Scheduler::next_chunk(Sequence& sequence, const Budget& budget) const {
  Chunk chunk{.sequence = &sequence, .begin = sequence.num_computed, .length = 0, .num_out = 0};
  chunk.length = std::min(sequence.num_left(), budget.tokens - budget.decodes);
  if (sequence.is_scored()) {
    chunk.num_out = chunk.length == sequence.num_left() ? 1 : 0;
    return chunk;
  }
  const int32_t first_row = std::max(chunk.begin, sequence.num_scored);
  chunk.length = std::min(chunk.length, first_row - chunk.begin + budget.score_rows);
  chunk.num_out = std::max(0, chunk.begin + chunk.length - first_row);
  return chunk;
}

void Scheduler::take(const Chunk& chunk, Budget& budget) {
  budget.tokens -= chunk.length;
  if (!chunk.sequence->is_scored()) budget.score_rows -= chunk.num_out;
  chunks_.push_back(chunk);
}

bool Scheduler::reserve_or_preempt(const Chunk& chunk, Budget& budget) {
  while (!kv_.reserve(chunk.sequence->slot, chunk.length)) {
    Sequence* const youngest = running_.back().get();
    if (youngest != chunk.sequence && youngest->num_left() == 1) --budget.decodes;
    preempt_youngest();
    if (youngest == chunk.sequence) return false;
  }
  return true;
}

void Scheduler::preempt_youngest() {
  std::unique_ptr<Sequence> sequence = std::move(running_.back());
  running_.pop_back();
  stop(*sequence);
  waiting_.push_front(std::move(sequence));
  ++counts_.preemptions;
}

void Scheduler::admit(Budget& budget) {
  while (!waiting_.empty() && num_running() < limits_.max_num_seqs &&
         budget.tokens > budget.decodes) {
    if (!start(*waiting_.front(), budget)) return;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

// Gives the sequence a slot, what the prefix cache has of it, and the pages of its first chunk;
// false, with nothing changed, where it must wait.
bool Scheduler::start(Sequence& sequence, Budget& budget) {
  sequence.slot = kv_.open();
  CHECK(sequence.slot != KvCache::kNoSlot);
  sequence.num_computed =
      kv_.adopt(sequence.slot, sequence.tokens, sequence.request.cache_salt, sequence.is_scored());
  const Chunk chunk = next_chunk(sequence, budget);
  // Window pages may be missing where memory is tight.
  if (chunk.length == 0 || !has_room(sequence) || !kv_.reserve(sequence.slot, chunk.length)) {
    stop(sequence);
    return false;
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
  kv_.close(sequence.slot);
  sequence.slot = KvCache::kNoSlot;
  sequence.num_computed = 0;
}

// Whether all tokens so far fit beside what the running sequences still need for theirs, with one
// page to grow for each: a sequence that would soon be taken out again need not start.
bool Scheduler::has_room(const Sequence& sequence) const {
  int64_t needed = kv_.pages_for(sequence.length()) - kv_.held_pages(sequence.slot);
  for (const auto& running : running_) {
    needed += kv_.pages_for(running->length()) + 1 - kv_.held_pages(running->slot);
  }
  return needed <= kv_.free_pages();
}

void Scheduler::commit() {
  for (const Chunk& chunk : chunks_) {
    kv_.commit(chunk.sequence->slot, chunk.length, chunk.sequence->tokens);
    chunk.sequence->num_computed += chunk.length;
  }
}

std::unique_ptr<Sequence> Scheduler::remove(RequestId id) {
  const auto has_id = [id](const auto& sequence) { return sequence->id == id; };
  std::unique_ptr<Sequence> sequence;
  if (auto r = std::find_if(running_.begin(), running_.end(), has_id); r != running_.end()) {
    sequence = std::move(*r);
    running_.erase(r);
    stop(*sequence);
  } else if (auto w = std::find_if(waiting_.begin(), waiting_.end(), has_id); w != waiting_.end()) {
    sequence = std::move(*w);
    waiting_.erase(w);
  }
  return sequence;
}

std::unique_ptr<Sequence> Scheduler::remove_any() {
  if (!running_.empty()) return remove(running_.back()->id);
  if (!waiting_.empty()) return remove(waiting_.back()->id);
  return nullptr;
}

}  // namespace nibble
