#include "text/grammar/regex_text.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "text/utf8.h"

namespace nibble {
namespace {

constexpr uint32_t kLastCharacter = 0x10FFFF;

// Half of a pair, which no text has.
bool is_surrogate(uint32_t c) { return c >= 0xD800 && c < 0xE000; }

}  // namespace

Numbered numbered(std::string_view pattern) {
  const auto of = [&](size_t begin, size_t end, size_t length, int base) -> Numbered {
    if (end > pattern.size() || length > pattern.size()) return {};
    uint32_t value = 0;
    const auto [to, error] =
        std::from_chars(pattern.data() + begin, pattern.data() + end, value, base);
    if (error != std::errc{} || to != pattern.data() + end) return {};
    return {length, value};
  };
  if (pattern.starts_with(R"(\x)")) return of(2, 4, 4, 16);
  if (pattern.starts_with(R"(\U)")) return of(2, 10, 10, 16);
  if (pattern.starts_with(R"(\u{)")) {
    const size_t end = std::min(pattern.find('}'), pattern.size());
    return of(3, end, end + 1, 16);
  }
  if (pattern.starts_with(R"(\u)")) return of(2, 6, 6, 16);
  if (pattern.starts_with(R"(\0)")) {
    const size_t end =
        std::min({pattern.find_first_not_of("01234567", 1), pattern.size(), size_t{4}});
    return of(1, end, end, 8);
  }
  return {};
}

namespace {

// What numbered() reads, or a backslash and what is no letter, digit or "_" of ASCII: itself.
Numbered escaped_character(std::string_view pattern) {
  constexpr std::string_view kPunctuation = "\t\n\r\v\f !\"#$%&'()*+,-./:;<=>?@[\\]^`{|}~";
  if (const Numbered by_number = numbered(pattern); by_number.length > 0) return by_number;
  const bool is_itself = pattern.size() > 1 && pattern[0] == '\\' &&
                         kPunctuation.find(pattern[1]) != kPunctuation.npos;
  return is_itself ? Numbered{2, static_cast<uint32_t>(pattern[1])} : Numbered{};
}

// The same pattern with these characters themselves: xgrammar reads \x with all hexadecimal digits
// that follow, and what it makes of a number inside a class with those behind it.
std::string with_characters(std::string_view pattern) {
  std::string out;
  while (!pattern.empty()) {
    const auto [length, c] = escaped_character(pattern);
    const bool is_cut =
        length == 0 && (pattern.starts_with(R"(\x)") || pattern.starts_with(R"(\u)") ||
                        pattern.starts_with(R"(\U)"));
    const size_t read = length > 0 ? length : pattern.front() == '\\' ? 2 : 1;
    const std::string_view one = pattern.substr(0, read);
    pattern.remove_prefix(one.size());
    if (is_cut || c > kLastCharacter || is_surrogate(c)) {
      out += R"(\u{})";  // which is refused
    } else if (length == 0) {
      out += one;
    } else if (c == 0) {
      out += R"(\0)";
    } else if (c == '\n') {
      out += R"(\n)";
    } else if (c == '\r') {
      out += R"(\r)";
    } else {
      constexpr std::string_view kSpecial = R"(^$.*+?\()[]{}|-)";
      if (c < 0x80 && kSpecial.find(static_cast<char>(c)) != kSpecial.npos) out += '\\';
      utf8::append(c, out);
    }
  }
  return out;
}

// Of the "?P<name>" or "?<name>" that a group begins with; 0: it has none.
size_t group_name_length(std::string_view group) {
  constexpr std::string_view kWord =
      "_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  const size_t begin = group.starts_with("?P<") ? 3 : group.starts_with("?<") ? 2 : 0;
  if (begin == 0) return 0;
  const size_t end = group.find_first_not_of(kWord, begin);
  return end != group.npos && end > begin && group[end] == '>' ? end + 1 : 0;
}

// Of the escape with this behind its backslash.
bool numbers_character(std::string_view escape) {
  constexpr std::string_view kDigits = "0123456789abcdefABCDEF";
  const size_t longest = escape.starts_with('x')   ? escape.size()
                         : escape.starts_with('u') ? 4
                         : escape.starts_with('U') ? 8
                                                   : 0;
  if (longest == 0) return true;
  escape.remove_prefix(1);
  const std::string_view digits =
      escape.substr(0, std::min(escape.find_first_not_of(kDigits), longest));
  uint32_t value = 0;
  const auto error = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16).ec;
  return error != std::errc::result_out_of_range && value <= kLastCharacter && !is_surrogate(value);
}

}  // namespace

std::string as_converted(std::string_view text) {
  constexpr std::string_view kDotAll = "(?s)", kCaret = R"(\^)";
  const bool dot_all = text.starts_with(kDotAll);
  if (dot_all) text.remove_prefix(kDotAll.size());
  const std::string spelled = with_brackets_escaped(with_characters(text));
  std::string_view pattern = spelled;
  std::string out;
  bool in_class = false, in_group = false;  // the group: of the "^" and the rest of its class
  while (!pattern.empty()) {
    const std::string_view one = pattern.substr(0, pattern.front() == '\\' ? 2 : 1);
    pattern.remove_prefix(one.size());
    if (one == "[" && !in_class && pattern.starts_with(kCaret)) {
      while (pattern.starts_with('^') || pattern.starts_with(kCaret))
        pattern.remove_prefix(pattern.find('^') + 1);
      const bool is_range = pattern.size() > 1 && pattern[0] == '-' && pattern[1] != ']';
      in_class = in_group = !pattern.starts_with(']');
      if (!in_class) pattern.remove_prefix(1);
      out += !in_class ? R"(\^)" : is_range ? R"((\^|[\x5f)" : R"((\^|[)";
    } else if (one == "." && !in_class && !dot_all) {
      out += R"([^\n])";
    } else if (one == "(" && !in_class) {
      out += one;
      pattern.remove_prefix(group_name_length(pattern));
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

std::string with_brackets_escaped(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  while (!pattern.empty()) {
    const std::string_view one = pattern.substr(0, pattern.front() == '\\' ? 2 : 1);
    pattern.remove_prefix(one.size());
    out += one == "]" && !in_class ? R"(\])" : one;
    if (one == "]") in_class = false;
    if (one != "[" || in_class) continue;
    in_class = true;
    if (pattern.starts_with('^')) {
      out += '^';
      pattern.remove_prefix(1);
    }
    if (pattern.starts_with(']')) {
      out += R"(\])";
      pattern.remove_prefix(1);
    }
  }
  return out;
}

bool numbers_characters(std::string_view escaped) {
  while (true) {
    escaped.remove_prefix(std::min(escaped.find('\\'), escaped.size()));
    if (escaped.empty()) return true;
    if (!numbers_character(escaped.substr(1))) return false;
    escaped.remove_prefix(std::min<size_t>(escaped.size(), 2));
  }
}

std::string without_comments(std::string_view rules) {
  std::string out;
  char until = 0;  // what ends the literal or class; 0: outside of them
  while (!rules.empty()) {
    const char c = rules.front();
    if (c == '#' && until == 0) {
      rules.remove_prefix(std::min(rules.find_first_of("\r\n"), rules.size()));
      continue;
    }
    const std::string_view one = rules.substr(0, c == '\\' ? 2 : 1);
    rules.remove_prefix(one.size());
    out += one;
    if (until == 0) {
      until = c == '"' ? '"' : c == '[' ? ']' : 0;
    } else if (c == until) {
      until = 0;
    }
  }
  return out;
}

}  // namespace nibble
