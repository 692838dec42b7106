// What the template engine (llama.cpp's, with cmake/jinja.patch) prints and strips as Python does,
// and how it counts.
#pragma once

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

namespace jinja {

// The fewest digits that give the number back, and a point or an exponent: "2.0", "1e+16", "1e-05".
inline std::string number_text(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
  const double size = std::fabs(value);
  const bool is_plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto form = is_plain ? std::chars_format::fixed : std::chars_format::scientific;
  char digits[32];
  std::string text(digits, std::to_chars(digits, std::end(digits), value, form).ptr);
  if (is_plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

// Its whole part is an int64_t.
inline bool fits_integer(double value) { return value >= -0x1p63 && value < 0x1p63; }

// a + b, a - b, a * b or a % b, which has the sign of b as Python's has. Throws where 64 bits do
// not hold it, or b is 0.
inline int64_t integer_result(char operation, int64_t a, int64_t b) {
  int64_t result = 0;
  bool fits = true;
  if (operation == '+') fits = !__builtin_add_overflow(a, b, &result);
  if (operation == '-') fits = !__builtin_sub_overflow(a, b, &result);
  if (operation == '*') fits = !__builtin_mul_overflow(a, b, &result);
  if (operation == '%' && b == 0) throw std::runtime_error("Modulo by zero");
  if (operation == '%' && b != -1) result = a % b;
  if (operation == '%' && result != 0 && (result < 0) != (b < 0)) result += b;
  if (!fits) throw std::runtime_error("The result is no integer of 64 bits");
  return result;
}

inline bool is_ascii_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 28 && c <= 31);
}

inline constexpr std::string_view kWideSpaces[] = {"\u0085", "\u00a0", "\u1680", "\u2000", "\u2001",
                                                   "\u2002", "\u2003", "\u2004", "\u2005", "\u2006",
                                                   "\u2007", "\u2008", "\u2009", "\u200a", "\u2028",
                                                   "\u2029", "\u202f", "\u205f", "\u3000"};

// Bytes of the white space that begins at `at`, or that ends before `end`; 0: none does. Of UTF-8,
// what Python's str.strip() takes.
inline size_t space_at(std::string_view text, size_t at) {
  if (at >= text.size()) return 0;
  if (is_ascii_space(text[at])) return 1;
  for (const std::string_view space : kWideSpaces)
    if (text.substr(at).starts_with(space)) return space.size();
  return 0;
}
inline size_t space_before(std::string_view text, size_t end) {
  if (end == 0) return 0;
  if (is_ascii_space(text[end - 1])) return 1;
  for (const std::string_view space : kWideSpaces)
    if (text.substr(0, end).ends_with(space)) return space.size();
  return 0;
}

}  // namespace jinja
