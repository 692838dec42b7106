// StepBlock: the arrays of one Step in one flat block at a fixed address, filled anew each step.
#pragma once

#include <cstdint>
#include <span>

#include "engine/sequence.h"
#include "models/model.h"
#include "tensor/buffer.h"

namespace nibble {

class StepBlock {
 public:
  StepBlock(const StepLimits& limits, int32_t max_num_seqs);
  static int64_t bytes(const StepLimits& limits, int32_t max_num_seqs);

  // Writes tokens, positions, spans and rows of the chunks, in their order.
  void fill(std::span<const Chunk> chunks);
  const Step& step() const { return step_; }

 private:
  StepLimits limits_;
  Arena arena_;
  int32_t* tokens_;     // [T]
  int32_t* positions_;  // [T]
  int32_t* out_rows_;   // [R]
  Span* spans_;         // [S]
  Step step_;
};

}  // namespace nibble
