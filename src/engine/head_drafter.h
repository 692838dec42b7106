// HeadDrafter: drafts by a head that reads the hidden rows of the model. Their last ones are put by
// behind each step, so the head is fed what was committed when it pays: before it drafts, of
// prompts at once, and else many tokens together, which costs next to nothing. Drafts are a chain
// behind what was fed last, each made from the one before. On a GPU nobody waits for any of this:
// ids go from device to device, into the step that verifies them, and what that finds to the head;
// the host learns of them beside it. But of several ranks rank 0 alone drafts, and its host waits
// for what it tells the others.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cuda/stream.h"
#include "engine/row_history.h"
#include "engine/sampler.h"
#include "engine/sequence.h"
#include "models/draft_head.h"
#include "ops/draft_head/draft_head.h"
#include "ops/sample/draw.h"
#include "ops/sample/sample.h"

namespace nibble {

// Drafts that a step takes as its tokens: on the device.
struct DraftedTokens {
  const int32_t* ids = nullptr;
  const ops::IdCopy* copies = nullptr;  // [n] into the step's tokens
  int64_t n = 0;
};

class HeadDrafter {
 public:
  struct Limits {
    int32_t max_tokens, max_num_seqs;  // of a step
    int32_t max_drafts;                // of one sequence
    int64_t row_bytes = 0;             // of a token's rows
    int32_t window = kNoWindow;        // the target's smallest
    // Drafts of requests with a temperature are drawn from the head's distribution, by the random
    // number that draws the id that they foretell: so a head that is right about the distribution
    // is right about the id. Else they are its likeliest ids.
    bool draws = false;
    // Not 0: they are drawn by random numbers of their own, and what they were drawn from is kept,
    // of so many of all sequences together.
    int32_t max_kept = 0;
    int32_t vocab_size = 0;  // of the head

    // Of a sequence's last tokens that many have their rows put by.
    int32_t history() const;
    StepLimits steps() const;  // of the head's own
  };

  // `target` keeps its rows already; `kv` has the pages of its layers, then the head's. All outlive
  // it. Reserves the head's memory.
  HeadDrafter(const Model& target, DraftHead& head, ops::Ctx& cx, const SeqState& kv,
              const Limits& limits);
  // Of its tables, on the host and on the device alike, and of the rows put by.
  static int64_t bytes(const Limits& limits);
  // On the host alone, of what drafts were drawn from.
  static int64_t kept_bytes(const Limits& limits) {
    return int64_t{limits.max_kept} * limits.vocab_size * static_cast<int64_t>(sizeof(float));
  }
  // To be kept of every step.
  RowHistory& history() { return history_; }

  // How many committed tokens the head has not been fed, of those that have one behind them.
  static int32_t owed(const Sequence& s) {
    return std::min(s.num_computed, s.length() - 1) - s.num_fed;
  }
  // Whether the rows of what is owed may be gone before the step after the next has ended.
  bool must_feed(const Sequence& s) const;
  // Whether enough is owed to go along where others must be fed.
  bool may_feed(const Sequence& s) const { return 4 * owed(s) >= limits_.history(); }
  // As long a chunk is read from the step's rows at once.
  bool is_long(int32_t length) const { return length > limits_.max_drafts + 2; }

  struct Fed {
    static constexpr int32_t kPutBy = -1;
    Sequence* sequence;
    int32_t begin, length;
    // Of its token num_fed, of the step that ran last; or their rows were put by. Where the one
    // before comes along, which has none, that one stands in: drafts may be worse for it.
    int32_t row;
    // Drafts are to follow the last one; or how good drafts would have been is to be seen of the
    // last so many, behind which two tokens are known.
    int32_t num_out;
  };
  // Sets draft_row of those that drafts follow; `drafts` false: none do, some may be seen.
  void feed(std::span<const Fed> fed, bool drafts);
  // On GPUs, while a step of up to so many tokens runs that verifies drafts, which the sequences
  // have not been told yet: feeds what it finds of its rows, `ids` in their order, of each of its
  // tokens, and finds a draft behind each. So the GPU does that while the host learns what came
  // true. Of more tokens, those that did not would cost more than the host takes.
  static constexpr int32_t kMostFedAhead = 8;
  void feed_ahead(std::span<const Chunk> chunks, const int32_t* ids);
  // In place of feed(), once it is known what came true: `row` of each is the token of that step
  // where its own begin.
  void take_fed(std::span<const Fed> fed);
  // Of all chunks that have room for drafts. They are the sequences' at once on CPUs, and where
  // other ranks are told of them.
  void draft(std::span<const Chunk> chunks);
  DraftedTokens drafted() const { return drafted_; }
  // On GPUs, once the step that verifies them has ended: they are the sequences'.
  void take();

  // What a draft of the step that ran last was drawn from, over the target's ids: q [V].
  void find_distribution(const Sequence& sequence, int32_t place, Distribution& q);

  // What would have been the first draft, and what came.
  struct Seen {
    RequestId id;
    int32_t drafted, token;
  };
  static constexpr int32_t kMostSeen = 32;
  // How many may be seen at once, of all sequences.
  int32_t may_see() const { return seen_.empty() ? std::min(kMostSeen, limits_.max_tokens) : 0; }
  // What was to be seen, once it has been.
  std::span<const Seen> seen();

  // Of what it did since the last call, all of which has ended.
  struct Spent {
    double seconds = 0;
    int32_t passes = 0;     // as many as the longest chain has drafts; 0: nothing was drafted
    bool has_read = false;  // more than what the step before had verified
  };
  Spent spent();

 private:
  struct Pass {
    Step step;
    int32_t capacity;
    int32_t* tokens;
    int32_t* positions;
    int32_t* rows;
    Span* spans;
    int32_t* out_rows;
    ops::Draw* draws;  // [outs]
    bool has_draws = false;
  };
  struct Drafting {
    Sequence* sequence;
    int32_t begin, num_drafts, first_token;  // in the step that verifies them
  };
  enum Part { kFeeding, kDrafting };

  void begin(Part part);
  void end(Part part);
  void add_time(Part part);

  template <typename T>
  T* place(int64_t n);
  template <typename T>
  const T* there(const T* here) const;  // where the head reads it
  Pass make_pass(int32_t tokens, int32_t spans, int32_t outs);
  static void add_span(Pass& pass, int32_t slot, int32_t begin, int32_t length);
  void add(Pass& pass, const Fed& fed, int32_t begin, int32_t end);
  void set_draw(Pass& pass, int32_t row, const Sequence& sequence, int32_t place) const;
  void fill(std::span<const Fed> fed, bool is_of_step, int32_t tail);
  int32_t tail_of(const Fed& fed, int32_t tail) const;
  void feed_tails(std::span<const Fed> fed, bool drafts, int32_t tail);
  int32_t find(std::span<float> logits, const ops::Draw& draw);
  void keep(const Tensor& logits);
  void send(int64_t from);
  Tensor run(const Pass& pass, std::span<const Tensor> target, int32_t place);
  int32_t* ids_of(int32_t place) { return ids_ + int64_t{place} * stride_; }

  DraftHead& head_;
  Sampler sampler_;  // over its vocabulary; on CPUs
  ops::Ctx& cx_;
  KvLayer kv_;
  Limits limits_;
  int32_t stride_;  // rows of logits of a step, at most
  RowHistory history_;
  Buffer block_, device_;  // the arrays of all passes of a round; on GPUs a copy there
  int64_t used_ = 0;
  std::vector<Pass> chain_;
  std::vector<Drafting> drafting_;  // the longest chain first
  std::vector<int32_t> last_rows_;  // of the pass that was fed, by row of logits
  DraftedTokens drafted_;
  // [max_drafts, stride_] of the target: the first draft by row of logits, the others in the order
  // of drafting_.
  int32_t* ids_ = nullptr;
  Buffer ids_memory_, found_, found_seen_, target_ids_, greedy_, turn_;
  Buffer kept_;                        // [max_kept, V of the head]
  int32_t num_kept_ = 0;               // rows: of the pass that was fed, then of chain_'s
  std::vector<int32_t> chain_rows_;    // where those of chain_[i] begin
  Distribution of_head_;               // [V of the head]
  std::vector<Seen> seen_, was_seen_;  // not yet; told last
  std::unique_ptr<cuda::Event> has_sent_, has_seen_;  // the block's arrays; seen_'s ids
  std::unique_ptr<cuda::Event> events_[4];            // around what was fed, and drafted
  bool is_timed_[2] = {false, false};
  std::chrono::steady_clock::time_point began_;
  Spent spent_;
};

}  // namespace nibble
