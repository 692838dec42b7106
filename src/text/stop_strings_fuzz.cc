// A text in pieces against stop strings, all from the input: the result does not depend on the
// pieces, and a stop string is never shown.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "text/stop_strings.h"

// Lines: stop strings until an empty one, then the text. The first byte gives the piece size.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t step = 1 + data[0] % 7;
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::vector<std::string> stops;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (line.empty()) break;
    stops.emplace_back(line);
  }
  nibble::StopStrings whole(stops), cut(stops);
  std::string expected = whole.push(rest);
  if (!whole.stopped()) expected += whole.flush();
  std::string shown;
  for (size_t i = 0; i < rest.size(); i += step) shown += cut.push(rest.substr(i, step));
  if (!cut.stopped()) shown += cut.flush();
  CHECK(shown == expected && cut.matched() == whole.matched());
  for (const auto& stop : stops) CHECK(shown.find(stop) == std::string::npos);
  CHECK(rest.substr(0, shown.size()) == shown);
  CHECK(whole.stopped() || shown == rest);
  return 0;
}
