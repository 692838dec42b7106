// Streams of any bytes in any pieces: the same events whatever the pieces, and numbers out of any
// JSON.
#include "cli/sse_reader.h"

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> whole, pieces;
  const auto into = [](std::vector<std::string>& events) {
    return [&events](std::string_view event) { events.emplace_back(event); };
  };
  nibble::cli::SseReader one, other;
  one.feed(bytes, into(whole));
  const size_t step = size == 0 ? 1 : 1 + data[0] % 7;
  for (size_t at = 0; at < size; at += step) other.feed(bytes.substr(at, step), into(pieces));
  if (whole != pieces) std::abort();
  for (const std::string& event : whole) nibble::cli::read_chunk(event);
  return 0;
}
