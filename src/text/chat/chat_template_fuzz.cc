// Any bytes as a chat template over a small conversation: it ends, within its bounds.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "text/chat/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string variables =
      R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a <b> \n"},
          {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
           "function": {"name": "f", "arguments": {"x": [1, 2.5, true, null]}}}]},
          {"role": "tool", "tool_call_id": "1", "content": "{}"}],
          "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
          "add_generation_prompt": true})";
  const nibble::TemplateLimits limits{
      .bytes = 16 << 20, .output_bytes = 1 << 20, .time_ms = 1'000, .depth = 200};
  try {
    const std::string source(reinterpret_cast<const char*>(data), size);
    const auto parsed = nibble::ChatTemplate::parse(source, "fuzz", limits);
    const auto pieces = parsed.render(variables, {{"bos_token", "<s>"}}, 1'700'000'000);
    for (size_t i = 1; pieces && i < pieces->size(); ++i) {
      if ((*pieces)[i].literal == (*pieces)[i - 1].literal) __builtin_trap();
    }
  } catch (const nibble::Error&) {
  }
  return 0;
}
