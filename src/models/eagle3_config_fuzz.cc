// config.json of heads that draft: what cannot be is an Error, and what can names layers that the
// target has and sizes that multiply without overflow.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "models/eagle3_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nibble;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const Eagle3Config c = parse_eagle3_config(Config::parse(text, "fuzz"), 36);
    CHECK(!c.target_layers.empty() && c.target_layers.front() >= 0);
    CHECK(c.target_layers.back() < 36 && c.q_width() > 0 && c.kv_width() > 0);
    CHECK(static_cast<int64_t>(c.rope.inv_freq.size()) == c.head_dim / 2);
    CHECK(c.vocab > 0 && c.vocab <= c.target_vocab);
  } catch (const Error&) {
  }
  return 0;
}
