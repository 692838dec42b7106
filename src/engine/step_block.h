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
  // In `memory`, of at least bytes().
  StepBlock(const StepLimits& limits, Buffer memory)
      : limits_(limits), memory_(std::move(memory)) {}
  static int64_t bytes(const StepLimits& limits, int32_t max_num_seqs);

  // Writes tokens, positions, spans and rows of the chunks, in their order.
  void fill(std::span<const Chunk> chunks);
  Step step() const { return step_at(memory_.data()); }

  const void* data() const { return memory_.data(); }
  int64_t used_bytes() const { return used_; }
  // The step whose arrays lie in a copy of the block at `data`.
  Step step_at(void* data) const;

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
