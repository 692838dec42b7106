// What a caller gave, inside one of xgrammar's structural tags: {"type": "json_schema" or
// "qwen_xml_parameter", "json_schema": ...}, {"type": "regex", "pattern": ...} and
// {"type": "grammar", "grammar": ...}. Beside it may stand, for us alone, "lenient" and "function",
// whose arguments it describes.
#pragma once

#include <functional>
#include <string>

#include "text/grammar/grammar.h"

namespace nibble {

// Puts in place of each part what `keep` makes of it, and takes our words out. `keep` returns why a
// part is refused, or "": so does this, of the first one. A text that is no JSON stays as it is. In
// place of a schema of JSON come what `rules_of` makes of it, in EBNF; "": it stays.
std::string keep_parts(std::string& tag, const std::function<std::string(GrammarSpec& part)>& keep,
                       const std::function<std::string(const std::string& schema)>& rules_of);

}  // namespace nibble
