// Scheduler: which tokens go into the next step. Who came first goes first, and each number of
// priority counts as having come a minute later: a running sequence that decodes gets one token and
// the drafts that are to be verified behind it, for which nobody gives up pages; prompts share what
// is left of the budget in chunks, and waiting requests are admitted while their tokens fit into
// free pages. Where a running sequence needs a page and none is free, or one of a better priority
// waits, the last one gives up its pages and computes them again later: so the first always gets
// on, and nothing deadlocks. A decode waits for no more than the chunks of one step.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "engine/sequence.h"

namespace nibble {

struct SchedulerLimits {
  int32_t max_num_seqs = 0;
  int32_t max_tokens = 0;      // of a step; at least max_num_seqs, so that every sequence decodes
  int32_t max_score_rows = 0;  // rows with logits of prompts that are scored, all together
  int32_t max_drafts = 0;      // drafts that one step verifies, all sequences together
  bool chunked = true;       // else a prompt waits for a step that it fits into whole; one that is
                             // scored still goes by max_score_rows
  int32_t max_replayed = 0;  // tokens of a step whose states can be cut back
  // The last token that the prefix cache has is computed again, unless there are states, of which
  // there is none a token shorter.
  bool needs_last_row = false;
};

class Scheduler {
 public:
  Scheduler(KvCache& kv, const SchedulerLimits& limits);

  // With its forks, whose prompt and priority must be its own.
  void add(std::unique_ptr<Sequence> sequence);
  // Chunks of the next step, pages reserved; none: nothing to do. Unless it admits, who waits goes
  // on waiting.
  const std::vector<Chunk>& plan(bool admits = true);
  const std::vector<Chunk>& chunks() const { return chunks_; }
  // Before commit(): the last token of the chunk's sequence is left to be computed again, when it
  // is not held any more.
  void hold(size_t chunk);
  // Before commit(): only the first `length` tokens of the chunk became the sequence's. Where there
  // are recurrent layers they are replayed, or, in steps too long for that, it is none of them.
  void keep(size_t chunk, int32_t length);
  // Those whose masks are not pending any more are in the plans again. Whether there are any.
  bool release_held();
  bool has_released() const;  // release_held() would
  // Pages for the token behind each chunk too, so that the step after this one can begin before
  // commit(), which leaves them reserved. False where they do not suffice: nothing is preempted.
  bool reserve_ahead();
  // The step of the last plan() has run: its tokens are in the pages.
  void commit();
  // Takes a sequence out and frees its pages; null where there is none of that id. Its forks go on
  // without it.
  std::unique_ptr<Sequence> remove(RequestId id);
  // One whose deadline is over; null where there is none.
  std::unique_ptr<Sequence> remove_expired(SteadyTime now);
  // Any sequence, or null; to end all of them.
  std::unique_ptr<Sequence> remove_any();

  std::span<const std::unique_ptr<Sequence>> running() const { return running_; }
  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  int32_t num_held() const;     // of those running
  int32_t num_waiting() const;  // forks included
  struct Counts {
    int64_t preemptions = 0;
    int64_t prefix_queries = 0;  // tokens of prompts that were started
    int64_t prefix_hits = 0;     // those of them that the prefix cache had
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Budget {
    int32_t tokens;
    int32_t score_rows;
    int32_t drafts;
    int32_t decodes;  // running sequences further on that want one token each
  };
  Chunk next_chunk(Sequence& sequence, const Budget& budget) const;
  int32_t with_states(const Sequence& sequence, int32_t length) const;
  void take(const Chunk& chunk, Budget& budget);
  bool reserve_or_preempt(Chunk& chunk, Budget& budget);
  void preempt_last();
  void make_way();
  void admit(Budget& budget);
  bool start(Sequence& sequence, Budget& budget);
  void stop(Sequence& sequence);
  void fork(Sequence& sequence);
  bool has_room(const Sequence& sequence) const;

  KvCache& kv_;
  SchedulerLimits limits_;
  std::vector<std::unique_ptr<Sequence>> running_;  // by goes_before(), as the others
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<Chunk> chunks_;
  int32_t num_tokens_ = 0;          // of chunks_, as planned
  bool is_reserved_ahead_ = false;  // a token behind each of them
  Counts counts_;
};

}  // namespace nibble
