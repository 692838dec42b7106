// UTF-8 as Unicode 15, section 3.9, table 3-7 defines it: no surrogates, no overlong forms, nothing
// above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace nibble::utf8 {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

enum class Kind {
  kCharacter,  // one well-formed character
  kBad,        // a maximal bad prefix: what one U+FFFD replaces
  kUnfinished  // the text ends inside what may still become a character
};

struct Unit {
  Kind kind;
  size_t bytes;  // 1 to 4
};

// The first unit of a text that is not empty.
Unit first_unit(std::string_view text);

// The code point of a well-formed character.
char32_t code_point(std::string_view character);
void append(char32_t c, std::string& out);

// Bytes of the longest well-formed prefix.
size_t valid_prefix(std::string_view text);

// Appends `bytes` to `out`, one U+FFFD for each bad prefix. Returns the number of bytes used: all,
// less an unfinished character at the end where `at_end` is false.
size_t append_lossy(std::string_view bytes, bool at_end, std::string& out);

}  // namespace nibble::utf8
