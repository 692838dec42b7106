// Regular expressions in the words that xgrammar reads as others do.
#pragma once

#include <string>
#include <string_view>

namespace nibble {

// The same pattern, where xgrammar's converter of regular expressions would read another: its "."
// takes a line's end, too, "[\^a]" is read as "[^a]", and "\x41B" as one character. "(?s)" in
// front, which it does not know, is understood here; characters have their numbers as in Python's
// re, and as \u{h}. Patterns of JSON Schemas are read by other rules of its own.
std::string as_converted(std::string_view pattern);

// Whether each number that an EBNF grammar gives a character by is one's: in xgrammar, which takes
// all digits behind \x, a larger one may not fit its integers.
bool numbers_characters(std::string_view rules);

}  // namespace nibble
