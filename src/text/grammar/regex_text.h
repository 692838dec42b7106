// Regular expressions in the words that xgrammar reads as others do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace nibble {

// The same pattern, where xgrammar's converter of regular expressions would read another: its "."
// takes a line's end, too, "[\^a]" is read as "[^a]", and "\x41B" as one character. "(?s)" in
// front, which it does not know, and names of groups are understood here; characters have their
// numbers as in Python's re, and as \u{h}, and others a backslash, as its re.escape() writes it.
// Patterns of JSON Schemas are read by other rules of its own.
std::string as_converted(std::string_view pattern);

// The same pattern, where a "]" that ends no class has a backslash: "[^]a]" and "a]" are what
// Python's re reads; to xgrammar the first is any character and "a]", and the second an error.
std::string with_brackets_escaped(std::string_view pattern);

// The escape that a pattern begins with, where it says a character by its number: \xhh, \uhhhh,
// \Uhhhhhhhh, \u{h}, \0oo.
struct Numbered {
  size_t length = 0;  // of the escape; 0: it is none
  uint32_t character = 0;
};
Numbered numbered(std::string_view pattern);

// Whether each escape of an EBNF grammar or a schema's pattern that numbers a character has one's
// number: xgrammar writes halves of surrogate pairs as bytes that are no text, and as it takes all
// digits behind \x, a larger number may not fit its integers.
bool numbers_characters(std::string_view escaped);

// An EBNF grammar with nothing from a "#" to its line's end.
std::string without_comments(std::string_view rules);

}  // namespace nibble
