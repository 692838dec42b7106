// Any text as the JSON Schema of a function. Input: the schema.
#include <cstdint>

#include "base/check.h"
#include "text/chat/harmony_tools.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nibble;
  if (size > 4096) return 0;
  ToolNamespace functions{.name = "functions", .description = "", .tools = {}};
  functions.tools.push_back({.name = "f",
                             .description = "d",
                             .parameters = std::string(reinterpret_cast<const char*>(data), size)});
  const Result<std::string> text = render_tools({&functions, 1});
  CHECK(!text.ok() || text.value().starts_with("# Tools\n\n## functions\n\nnamespace functions {"));
  const Result<std::string> json = compact_json(functions.tools[0].parameters, "schema");
  if (!json.ok()) {
    CHECK(size == 0 || !text.ok());
    return 0;
  }
  const Result<std::string> again = compact_json(json.value(), "schema");
  CHECK(again.ok() && again.value() == json.value());
  return 0;
}
