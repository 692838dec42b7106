// config.json: every accessor on every key, the rotary parameters, OpenAI's words.
#include <cmath>
#include <cstdint>
#include <functional>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "io/config.h"
#include "io/original_layout.h"

namespace {

using nibble::Config;

void attempt(const std::function<void()>& read) {
  try {
    read();
  } catch (const nibble::Error&) {
  }
}

void visit(const Config& config) {
  for (const std::string& key : config.keys()) {
    attempt([&] { CHECK(std::abs(config.integer(key, -100, 100)) <= 100); });
    attempt([&] { CHECK(std::fabs(config.number(key, -1, 1)) <= 1); });
    attempt([&] { (void)config.integers(key, INT64_MIN, INT64_MAX); });
    attempt([&] { (void)config.boolean(key); });
    attempt([&] { (void)config.text(key); });
    attempt([&] { (void)config.texts(key); });
    attempt([&] {
      if (const auto inner = config.object(key)) visit(*inner);
    });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  attempt([&] {
    const Config config = Config::parse({reinterpret_cast<const char*>(data), size}, "fuzz");
    visit(config);
    attempt([&] { CHECK(nibble::rope_parameters(config).has("rope_theta")); });
    attempt([&] {
      if (nibble::is_original_config(config)) visit(nibble::from_original_config(config));
    });
  });
  return 0;
}
