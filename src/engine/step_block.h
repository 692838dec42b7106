// StepBlock: the arrays of one Step in one flat block, filled anew each step. They lie one behind
// the other, so that one copy moves them to a device, and steps of the same counts find them at the
// same places.
#pragma once

#include <cstdint>
#include <span>

#include "engine/sequence.h"
#include "models/model.h"
#include "tensor/buffer.h"

namespace nibble {

class StepBlock {
 public:
  // In `memory`, of at least bytes(). Two blocks take turns: `turn` is 0 or 1.
  StepBlock(const StepLimits& limits, Buffer memory, int32_t turn);
  static int64_t bytes(const StepLimits& limits, int32_t max_num_seqs);

  // Writes tokens, positions, spans and rows of the chunks, in their order; no tokens where they
  // are not known yet.
  void fill(std::span<const Chunk> chunks, bool has_tokens = true);
  Step step() const { return step_at(memory_.data()); }

  const void* data() const { return memory_.data(); }
  int32_t turn() const { return *turn_at(data()); }
  int64_t used_bytes() const { return used_; }
  // The step whose arrays lie in a copy of the block at `data`.
  Step step_at(void* data) const;
  static const int32_t* turn_at(const void* data) { return static_cast<const int32_t*>(data); }

 private:
  struct Offsets {
    int64_t tokens, positions, spans, out_rows;
  };

  StepLimits limits_;
  Buffer memory_;
  Step counts_;  // without arrays
  Offsets at_ = {};
  int64_t used_ = 0;
};

}  // namespace nibble
