#include "text/tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "text/utf8.h"

namespace nibble {

bool is_plainly_nfc(std::string_view text) {
  // U+0300 is CC 80; lead bytes grow with the code point and tail bytes are below CC.
  return std::none_of(text.begin(), text.end(), [](char c) { return uint8_t(c) >= 0xCC; });
}

// utf8proc_map would do all of it, but it orders combining marks by swapping neighbours: a text of
// marks in the wrong order costs it O(n^2).
std::string to_nfc(std::string_view text) {
  std::vector<int32_t> codes;
  codes.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t n = utf8::first_unit(text.substr(i)).bytes;
    const auto c = static_cast<int32_t>(utf8::code_point(text.substr(i, n)));
    i += n;
    if (c < 0xC0) {
      codes.push_back(c);
      continue;
    }
    std::array<int32_t, 32> parts;  // the longest canonical decomposition has 4
    int boundary = 0;
    const auto k =
        utf8proc_decompose_char(c, parts.data(), parts.size(), UTF8PROC_DECOMPOSE, &boundary);
    CHECK(k >= 0 && static_cast<size_t>(k) <= parts.size());
    codes.insert(codes.end(), parts.begin(), parts.begin() + k);
  }
  // Canonical order: each run of marks sorted by class, equals as they were.
  const auto mark_class = [](int32_t c) { return utf8proc_get_property(c)->combining_class; };
  for (size_t i = 0; i < codes.size();) {
    size_t end = i;
    while (end < codes.size() && codes[end] >= 0x300 && mark_class(codes[end]) != 0) ++end;
    std::stable_sort(codes.begin() + i, codes.begin() + end,
                     [&](int32_t a, int32_t b) { return mark_class(a) < mark_class(b); });
    i = end + 1;
  }
  const auto composed =
      utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  CHECK(composed >= 0);
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < composed; ++i) utf8::append(codes[i], out);
  return out;
}

}  // namespace nibble
