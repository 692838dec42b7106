// tokenizer_config.json as far as chats go: the template's text and its special tokens, or an Error
// that names the file.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "text/chat/template_format.h"
#include "text/chat/tool_format.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const std::string source = nibble::template_of_config(text, "fuzz");
    nibble::markup_of_template(source);
    for (const auto& [name, value] : nibble::template_literals(text, "fuzz")) CHECK(!name.empty());
  } catch (const nibble::Error& e) {
    CHECK(std::string_view(e.what()).find("fuzz") != std::string_view::npos);
  }
  return 0;
}
