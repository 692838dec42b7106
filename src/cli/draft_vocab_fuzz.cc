// Any bytes: a list of ids that is read has each of them once, and none that cannot be.
#include <cstdint>
#include <set>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "cli/draft_vocab.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nibble;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const std::vector<int32_t> ids = cli::parse_draft_vocab(text, "ids");
    CHECK(!ids.empty() && std::set(ids.begin(), ids.end()).size() == ids.size());
    for (const int32_t id : ids) CHECK(id >= 0 && id < cli::kMostDraftIds);
  } catch (const Error&) {
  }
  return 0;
}
