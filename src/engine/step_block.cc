#include "engine/step_block.h"

#include <algorithm>

#include "base/check.h"

namespace nibble {

int64_t StepBlock::bytes(const StepLimits& limits, int32_t max_num_seqs) {
  const auto padded = [](int64_t n, int64_t bytes) { return Arena::padded(n * bytes); };
  return 2 * padded(limits.max_tokens, sizeof(int32_t)) + padded(limits.max_out, sizeof(int32_t)) +
         padded(max_num_seqs, sizeof(Span));
}

StepBlock::StepBlock(const StepLimits& limits, int32_t max_num_seqs)
    : limits_(limits), arena_(bytes(limits, max_num_seqs)) {
  tokens_ = arena_.take(DType::kI32, {limits.max_tokens}).as<int32_t>();
  positions_ = arena_.take(DType::kI32, {limits.max_tokens}).as<int32_t>();
  out_rows_ = arena_.take(DType::kI32, {limits.max_out}).as<int32_t>();
  static_assert(sizeof(Span) % sizeof(int32_t) == 0);
  spans_ = static_cast<Span*>(
      arena_.take(DType::kI32, {max_num_seqs, sizeof(Span) / sizeof(int32_t)}).data);
  step_ = {.num_tokens = 0,
           .num_spans = 0,
           .num_out = 0,
           .tokens = tokens_,
           .positions = positions_,
           .spans = spans_,
           .out_rows = out_rows_};
}

void StepBlock::fill(std::span<const Chunk> chunks) {
  step_.num_tokens = step_.num_spans = step_.num_out = 0;
  for (const Chunk& chunk : chunks) {
    const int32_t start = step_.num_tokens;
    const int32_t end = start + chunk.length;
    CHECK(end <= limits_.max_tokens && step_.num_out + chunk.num_out <= limits_.max_out);
    spans_[step_.num_spans++] = {.q_start = start,
                                 .q_len = chunk.length,
                                 .context = chunk.begin,
                                 .slot = chunk.sequence->slot};
    std::copy_n(&chunk.sequence->tokens[chunk.begin], chunk.length, tokens_ + start);
    for (int32_t i = 0; i < chunk.length; ++i) positions_[start + i] = chunk.begin + i;
    for (int32_t row = end - chunk.num_out; row < end; ++row) out_rows_[step_.num_out++] = row;
    step_.num_tokens = end;
  }
}

}  // namespace nibble
