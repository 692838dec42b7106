// Bytes as a step that another rank sends: what is read of them must lie within the bounds.
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "engine/step_message.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nibble;  // NOLINT
  const StepBounds bounds{.limits = {.max_tokens = 8, .max_out = 4},
                          .max_seqs = 3,
                          .max_len = 100,
                          .vocab_size = 50,
                          .may_be_fed = true,
                          .pages = {6, 6},
                          .entries = {12, 9, 3},
                          .values = {6, 4, 5},
                          .written = 2};
  // As a vector of them is: aligned.
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(data[i]);
  try {
    const StepMessage m = read_message(bytes, bounds);
    if (m.ends) return 0;
    std::vector<int> touched(3);
    for (int32_t i = 0; i < m.step.num_spans; ++i) {
      const Span& span = m.step.spans[i];
      touched.at(static_cast<size_t>(span.slot)) += span.q_len;
      CHECK(span.context + span.q_len <= bounds.max_len);
    }
    CHECK(touched[0] + touched[1] + touched[2] == m.step.num_tokens);
    for (int32_t t = 0; !m.is_fed && t < m.step.num_tokens; ++t)
      CHECK(m.step.tokens[t] < bounds.vocab_size);
    CHECK(m.draws.empty() || std::ssize(m.draws) == m.step.num_out);
    for (const ops::Draw& d : m.draws) CHECK(d.u < 1 && d.top_k >= 0 && d.temperature < 1e39);
    for (const TableChange& c : m.changes) {
      CHECK(c.index < bounds.entries.at(static_cast<size_t>(c.table)));
      CHECK(c.value >= (c.table == bounds.written ? 0 : -1));
    }
  } catch (const Error&) {
    return 0;
  }
  return 0;
}
