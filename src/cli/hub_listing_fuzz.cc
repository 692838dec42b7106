// The hub's answer comes from outside: whatever it says, no file may lie outside the cache.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "cli/hub_listing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto listing =
        nibble::cli::read_hub_listing(std::string_view(reinterpret_cast<const char*>(data), size));
    for (const nibble::cli::HubFile& file : listing.files) {
      CHECK(!file.path.starts_with('/') && file.size >= 0);
      CHECK(("/" + file.path + "/").find("/../") == std::string::npos);
      CHECK(file.hash.find_first_not_of("0123456789abcdef") == std::string::npos);
    }
  } catch (const nibble::Error&) {
  }
  return 0;
}
