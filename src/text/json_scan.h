// A look over a text of JSON before it becomes values: whether it is JSON does not matter.
#pragma once

#include <cstddef>
#include <string_view>

namespace nibble {

// Calls fn(c) for each character outside of strings, and for the quote that begins one, until it
// returns false.
template <typename Fn>
void for_each_outside_strings(std::string_view json, const Fn& fn) {
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (!fn(c)) return;
  }
}

}  // namespace nibble
