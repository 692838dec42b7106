// Bytes as what rank 0 asks of a slice of logits: what is read of them must lie within the slice.
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "engine/row_slice.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nibble;  // NOLINT
  const Cut cut(100, 48, 40);
  // As a vector of them is: aligned.
  std::vector<std::byte> bytes(size), answered;
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(data[i]);
  std::vector<float> logits(static_cast<size_t>(cut.size));
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(static_cast<float>(i));
  std::vector<Candidate> work;
  try {
    const RowAsk ask = read_ask(bytes, cut, /*rows=*/3);
    CHECK(ask.row < 3 && std::ssize(bytes) <= most_ask_bytes(cut));
    const std::vector<int32_t> masked = {3, 50, 99};
    answer(ask, RowSlice(logits, cut.begin), masked, work, answered);
    CHECK(!answered.empty() && answered.size() <= sizeof(DigitSums));
  } catch (const Error&) {
    return 0;
  }
  return 0;
}
