#include "engine/step_block.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "engine/philox.h"
#include "engine/sampler.h"

namespace nibble {
namespace {

constexpr int64_t kAlign = 16;
constexpr int32_t kLeastContextBound = 1024;

template <typename T>
int64_t place(int64_t& used, int64_t n) {
  const int64_t at = used;
  used += (n * static_cast<int64_t>(sizeof(T)) + kAlign - 1) / kAlign * kAlign;
  return at;
}

template <typename T>
T* at(void* data, int64_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(data) + offset);
}

}  // namespace

ops::Draw draw_of(const Sequence& sequence, int32_t ahead) {
  const SamplingParams& p = sequence.request.sampling;
  if (p.temperature == 0) return {};
  const auto index = static_cast<uint64_t>(sequence.sampling.index + ahead);
  return {.temperature = p.temperature,
          .min_p = p.min_p,
          .top_p = p.top_p,
          .top_k = p.top_k,
          .u = uniform(sequence.sampling.seed, index, kDrawsId)};
}

StepBlock::StepBlock(const StepLimits& limits, Buffer memory, int32_t turn)
    : limits_(limits), memory_(std::move(memory)) {
  *static_cast<int32_t*>(memory_.data()) = turn;
}

int64_t StepBlock::bytes(const StepLimits& limits, int32_t max_num_seqs) {
  int64_t used = 0;
  place<int32_t>(used, 1);
  place<int32_t>(used, limits.max_tokens), place<int32_t>(used, limits.max_tokens);
  place<Span>(used, max_num_seqs), place<int32_t>(used, limits.max_out);
  place<ops::Draw>(used, limits.max_out);
  return used;
}

void StepBlock::place_arrays() {
  const Step& c = counts_;
  CHECK(c.num_tokens <= limits_.max_tokens && c.num_out <= limits_.max_out);
  used_ = 0;
  place<int32_t>(used_, 1);  // turn
  at_ = {.tokens = place<int32_t>(used_, c.num_tokens),
         .positions = place<int32_t>(used_, c.num_tokens),
         .spans = place<Span>(used_, c.num_spans),
         .out_rows = place<int32_t>(used_, c.num_out),
         .draws = place<ops::Draw>(used_, c.num_out)};
  CHECK(used_ <= memory_.size_bytes());
}

void StepBlock::copy(const Step& step, std::span<const ops::Draw> draws) {
  counts_ = step;
  place_arrays();
  void* const data = memory_.data();
  if (step.tokens != nullptr)
    std::copy_n(step.tokens, step.num_tokens, at<int32_t>(data, at_.tokens));
  std::copy_n(step.positions, step.num_tokens, at<int32_t>(data, at_.positions));
  std::copy_n(step.spans, step.num_spans, at<Span>(data, at_.spans));
  std::copy_n(step.out_rows, step.num_out, at<int32_t>(data, at_.out_rows));
  has_draws_ = !draws.empty();
  std::ranges::copy(draws, at<ops::Draw>(data, at_.draws));
}

void StepBlock::fill(std::span<const Chunk> chunks, bool is_ahead) {
  Step& c = counts_;
  c = {.num_spans = static_cast<int32_t>(chunks.size())};
  int32_t longest = kLeastContextBound;
  for (const Chunk& chunk : chunks) {
    c.num_tokens += chunk.length;
    c.num_out += chunk.num_out;
    longest = std::max(longest, chunk.begin + chunk.length);
  }
  c.max_context = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(longest)));
  place_arrays();

  auto* const tokens = at<int32_t>(memory_.data(), at_.tokens);
  auto* const positions = at<int32_t>(memory_.data(), at_.positions);
  auto* span = at<Span>(memory_.data(), at_.spans);
  auto* out_row = at<int32_t>(memory_.data(), at_.out_rows);
  auto* const draws = at<ops::Draw>(memory_.data(), at_.draws);
  std::fill_n(draws, c.num_out, ops::Draw{});
  has_draws_ = false;
  int32_t start = 0, num_out = 0;
  for (const Chunk& chunk : chunks) {
    const int32_t end = start + chunk.length;
    *span++ = {.q_start = start,
               .q_len = chunk.length,
               .context = chunk.begin,
               .slot = chunk.sequence->slot};
    if (!is_ahead) {
      std::copy_n(&chunk.sequence->tokens[chunk.begin], chunk.length - chunk.num_drafts,
                  tokens + start);
      std::copy_n(chunk.sequence->drafts.data(), chunk.num_drafts, tokens + end - chunk.num_drafts);
    }
    for (int32_t i = 0; i < chunk.length; ++i) positions[start + i] = chunk.begin + i;
    for (int32_t row = end - chunk.num_out; row < end; ++row) *out_row++ = row;
    num_out += chunk.num_out;
    // An id may follow the last row of a sequence, and those before it whose drafts are verified.
    for (int32_t i = 0; chunk.num_out > 0 && i <= chunk.num_drafts; ++i) {
      ops::Draw& draw = draws[num_out - 1 - chunk.num_drafts + i];
      // None where it needs what only the host knows: penalties, biases, others' log-probabilities.
      if (is_found_on_gpu(chunk.sequence->request.sampling))
        draw = draw_of(*chunk.sequence, i + (is_ahead ? 1 : 0));
      has_draws_ = has_draws_ || draw.temperature > 0;
    }
    start = end;
  }
}

const ops::Draw* StepBlock::draws_at(const void* data) const {
  return has_draws_ ? reinterpret_cast<const ops::Draw*>(static_cast<const char*>(data) + at_.draws)
                    : nullptr;
}

Step StepBlock::step_at(void* data) const {
  Step step = counts_;
  step.tokens = at<int32_t>(data, at_.tokens);
  step.positions = at<int32_t>(data, at_.positions);
  step.spans = at<Span>(data, at_.spans);
  step.out_rows = at<int32_t>(data, at_.out_rows);
  return step;
}

}  // namespace nibble
