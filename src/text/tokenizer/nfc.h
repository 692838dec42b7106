// Unicode normalization form C (UAX 15).
#pragma once

#include <string>
#include <string_view>

namespace nibble {

// True where a look at the bytes is enough to see that the text is in NFC: nothing in it is at or
// above U+0300, the first character that composes.
bool is_plainly_nfc(std::string_view text);

// The text, which must be well-formed UTF-8, in NFC. O(n log n) on any text.
std::string to_nfc(std::string_view text);

}  // namespace nibble
