#include "text/grammar/regex_text.h"

namespace nibble {
namespace {

// How long the escaped "^" is that a text begins with; 0: there is none.
size_t escaped_caret(std::string_view text) {
  for (const std::string_view caret :
       {R"(\^)", R"(\x5e)", R"(\x5E)", R"(\u005e)", R"(\u005E)", R"(\u{5e})", R"(\u{5E})"}) {
    if (text.starts_with(caret)) return caret.size();
  }
  return 0;
}

}  // namespace

std::string as_converted(std::string_view pattern) {
  constexpr std::string_view kDotAll = "(?s)";
  const bool dot_all = pattern.starts_with(kDotAll);
  if (dot_all) pattern.remove_prefix(kDotAll.size());
  std::string out;
  bool in_class = false, in_group = false;  // the group: of the "^" and the rest of its class
  while (!pattern.empty()) {
    const std::string_view one = pattern.substr(0, pattern.front() == '\\' ? 2 : 1);
    pattern.remove_prefix(one.size());
    const size_t caret = one == "[" && !in_class ? escaped_caret(pattern) : 0;
    if (caret > 0) {
      pattern.remove_prefix(caret);
      while (const size_t more = pattern.starts_with('^') ? 1 : escaped_caret(pattern))
        pattern.remove_prefix(more);
      const bool is_range = pattern.size() > 1 && pattern[0] == '-' && pattern[1] != ']';
      in_class = in_group = !pattern.starts_with(']');
      if (!in_class) pattern.remove_prefix(1);
      out += !in_class ? R"(\^)" : is_range ? R"((\^|[\x5f)" : R"((\^|[)";
    } else if (one == "." && !in_class && !dot_all) {
      out += R"([^\n])";
    } else {
      out += one;
      if (one == "[") in_class = true;
      if (one == "]" && in_class) {
        if (in_group) out += ')';
        in_class = in_group = false;
      }
    }
  }
  return out;
}

}  // namespace nibble
