// HeadDrafter: drafts by a head that reads the hidden rows of the model. Behind a step it is fed
// what that step has committed, rows and the tokens behind them; the next step's drafts are a chain
// from there, each made from the one before. On a GPU nobody waits for them: their ids go from
// device to device, and come to the host with what the step that verifies them finds.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cuda/stream.h"
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
    // Drafts of requests with a temperature are drawn from the head's distribution, by the random
    // number that draws the id that they foretell: so a head that is right about the distribution
    // is right about the id. Else they are its likeliest ids.
    bool draws = false;
  };

  // `target` keeps its rows already; `kv` has the pages of its layers, then the head's. All outlive
  // it. Reserves the head's memory.
  HeadDrafter(const Model& target, DraftHead& head, ops::Ctx& cx, const SeqState& kv,
              const Limits& limits);
  // Of its tables, on the host and on the device alike.
  static int64_t bytes(const Limits& limits);

  // Tokens [begin, begin + length) of a sequence, committed by the step that ran last, where they
  // were the rows from `row` on.
  struct Fed {
    Sequence* sequence;
    int32_t begin, length, row;
    bool is_read;  // of a prompt
  };
  // Sets draft_row of those that want drafts.
  void feed(std::span<const Fed> fed);
  // Of all chunks that have room for drafts. On CPUs they are the sequences' at once.
  void draft(std::span<const Chunk> chunks);
  DraftedTokens drafted() const { return drafted_; }
  // On GPUs, once the step that verifies them has ended: they are the sequences'.
  void take();

  // Of what it did since the last call, all of which has ended.
  struct Spent {
    double seconds = 0;
    int32_t passes = 0;     // as many as the longest chain has drafts; 0: nothing was drafted
    bool has_read = false;  // prompts, too
  };
  Spent spent();

 private:
  struct Pass {
    Step step;
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

  template <typename T>
  T* place(int64_t n);
  template <typename T>
  const T* there(const T* here) const;  // where the head reads it
  Pass& add_pass(int32_t tokens, int32_t spans, int32_t outs);
  void set_draw(Pass& pass, int32_t row, const Sequence& sequence, int32_t place) const;
  int32_t find(std::span<float> logits, const ops::Draw& draw);
  void send(int64_t from);
  void run(const Pass& pass, std::span<const Tensor> target, int32_t place);
  int32_t* ids_of(int32_t place) { return ids_ + int64_t{place} * limits_.max_num_seqs; }

  DraftHead& head_;
  Sampler sampler_;  // over its vocabulary; on CPUs
  ops::Ctx& cx_;
  KvLayer kv_;
  Limits limits_;
  std::vector<Tensor> kept_;  // the target's rows
  Buffer block_, device_;     // the arrays of all passes of a round; on GPUs a copy there
  int64_t used_ = 0;
  std::vector<Pass> passes_;
  std::vector<Drafting> drafting_;  // the longest chain first
  std::vector<int32_t> last_rows_;  // of the pass that was fed, by row of logits
  DraftedTokens drafted_;
  // [max_drafts, max_num_seqs] of the target: the first draft by row of logits, the others in the
  // order of drafting_.
  int32_t* ids_ = nullptr;
  Buffer ids_memory_, found_, target_ids_, greedy_, turn_;
  std::unique_ptr<cuda::Event> events_[4];  // around what was fed, and drafted
  bool is_timed_[2] = {false, false};
  std::chrono::steady_clock::time_point began_;
  Spent spent_;
};

}  // namespace nibble
