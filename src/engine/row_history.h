// RowHistory: the last hidden rows of every sequence, of those layers that a head drafts from, put
// by behind each step. So the head is fed when it pays, many tokens at once, and a step may begin,
// and overwrite the model's own rows, before it has been.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/ctx.h"
#include "ops/step.h"
#include "tensor/buffer.h"

namespace nibble {

class RowHistory {
 public:
  // Of the `kept` rows of a model, which outlive it: the last `length` of each of the slots.
  RowHistory(std::vector<Tensor> kept, const ops::Ctx& cx, int32_t num_slots, int32_t length);

  // Behind the model's pass of the step; on GPUs, as a part of it.
  void keep(ops::Ctx& cx, const Step& step);
  // Of the step that ran last, by its tokens, and those put by, at row().
  std::span<const Tensor> of_step() const { return kept_; }
  std::span<const Tensor> rows() const { return rows_; }
  int32_t row(int32_t slot, int32_t position) const { return slot * length_ + position % length_; }

 private:
  std::vector<Tensor> kept_, rows_;  // [tokens, W], [slots * length, W]
  std::vector<Buffer> memory_;
  int32_t length_;
};

}  // namespace nibble
