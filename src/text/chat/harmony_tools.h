// The "# Tools" block of Harmony: JSON Schemas as TypeScript-like types, letter for letter as the
// openai-harmony package 0.0.8 writes them, oddities included, since the model was trained on that.
#pragma once

#include <span>
#include <string>

#include "base/result.h"
#include "text/chat/chat.h"

namespace nibble {

// "# Tools" and one "## NAME" section a namespace, in the order given. No newline at the end. Fails
// on a schema that is no JSON, no object, or nested too deep, naming the function.
Result<std::string> render_tools(std::span<const ToolNamespace> namespaces);

// The JSON text without spaces, members in the order given. `what` names it in the failure.
Result<std::string> compact_json(const std::string& text, const std::string& what);

}  // namespace nibble
