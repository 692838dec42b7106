// StepBlock: the arrays of one Step in one flat block, filled anew each step. They lie one behind
// the other, so that one copy moves them to a device, and steps of the same counts find them at the
// same places.
#pragma once

#include <cstdint>
#include <span>

#include "engine/sequence.h"
#include "models/model.h"
#include "ops/sample/draw.h"
#include "tensor/buffer.h"

namespace nibble {

// How the id that comes `ahead` ids behind a sequence's next one is drawn; none at temperature 0.
ops::Draw draw_of(const Sequence& sequence, int32_t ahead);

class StepBlock {
 public:
  // In `memory`, of at least bytes(). Two blocks take turns: `turn` is 0 or 1.
  StepBlock(const StepLimits& limits, Buffer memory, int32_t turn);
  static int64_t bytes(const StepLimits& limits, int32_t max_num_seqs);

  // Writes tokens, positions, spans and rows of the chunks, in their order, and what is drawn of
  // the rows. is_ahead: of the step after the one at hand, whose ids are not known yet: no tokens.
  void fill(std::span<const Chunk> chunks, bool is_ahead = false);
  // The same of a step that another rank has planned; of its tokens none where the arrays are not
  // given, no draws where there are none.
  void copy(const Step& step, std::span<const ops::Draw> draws);
  Step step() const { return step_at(memory_.data()); }

  // What is drawn of its rows; none where no row draws.
  std::span<const ops::Draw> draws() const {
    return {draws_at(data()), has_draws_ ? static_cast<size_t>(counts_.num_out) : 0};
  }

  const void* data() const { return memory_.data(); }
  int32_t turn() const { return *turn_at(data()); }
  int64_t used_bytes() const { return used_; }
  // The step whose arrays lie in a copy of the block at `data`.
  Step step_at(void* data) const;
  static const int32_t* turn_at(const void* data) { return static_cast<const int32_t*>(data); }
  // Of each row of logits, in a copy of the block at `data`; none where no row draws.
  const ops::Draw* draws_at(const void* data) const;

 private:
  struct Offsets {
    int64_t tokens, positions, spans, out_rows, draws;
  };

  void place_arrays();

  StepLimits limits_;
  Buffer memory_;
  Step counts_;  // without arrays
  bool has_draws_ = false;
  Offsets at_ = {};
  int64_t used_ = 0;
};

}  // namespace nibble
