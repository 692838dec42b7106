// Regular expressions in the words that xgrammar reads as others do.
#pragma once

#include <string>
#include <string_view>

namespace nibble {

// The same pattern, where xgrammar's converter of regular expressions would read another: its "."
// takes a line's end, too, and "[\^a]" is read as "[^a]". "(?s)" in front, which it does not know,
// is understood here. Patterns of JSON Schemas are read by other rules of its own.
std::string as_converted(std::string_view pattern);

}  // namespace nibble
