#include "text/grammar/string_budgets.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <map>
#include <set>

namespace nibble {
namespace {

// The body of the rule for a character of a bounded string: it is printed so for nothing else.
constexpr std::string_view kPrinted = R"( ::= (([^\0-\x1f\"\\])))";
constexpr std::string_view kCharacter = R"([^\0-\x1f\"\\])";

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Where the literal or class that begins at `at` ends; `at` where none begins.
size_t skip_quoted(std::string_view rules, size_t at) {
  if (rules[at] != '"' && rules[at] != '[') return at;
  const char end = rules[at] == '"' ? '"' : ']';
  for (size_t i = at + 1; i < rules.size(); ++i) {
    if (rules[i] == '\\') {
      ++i;
    } else if (rules[i] == end) {
      return i + 1;
    }
  }
  return rules.size();
}

// Reads "{2, 5}" at `at` and moves behind it; false: it is not there.
bool read_bounds(std::string_view rules, size_t& at, int32_t& least, int32_t& most) {
  size_t i = at;
  const auto is_next = [&](std::string_view text) {
    if (!rules.substr(i).starts_with(text)) return false;
    i += text.size();
    return true;
  };
  const auto is_number = [&](int32_t& value) {
    const auto [end, error] = std::from_chars(rules.data() + i, rules.data() + rules.size(), value);
    i = static_cast<size_t>(end - rules.data());
    return error == std::errc() && value >= 0;
  };
  if (!is_next("{") || !is_number(least) || !is_next(", ") || !is_number(most) || !is_next("}")) {
    return false;
  }
  at = i;
  return true;
}

// The names of the rules for such characters.
std::set<std::string, std::less<>> character_rules(std::string_view rules) {
  std::set<std::string, std::less<>> names;
  for (size_t at = 0; at < rules.size();) {
    const std::string_view line = rules.substr(at, rules.find('\n', at) - at);
    at += line.size() + 1;
    if (!line.ends_with(kPrinted)) continue;
    const std::string_view name = line.substr(0, line.size() - kPrinted.size());
    if (std::all_of(name.begin(), name.end(), is_name)) names.emplace(name);
  }
  return names;
}

}  // namespace

std::string with_string_budgets(std::string_view rules, int32_t from) {
  const auto names = character_rules(rules);
  if (names.empty()) return std::string(rules);
  std::string out;
  std::map<std::string, int32_t> budgets;  // rules, and characters
  for (size_t at = 0; at < rules.size();) {
    size_t end = skip_quoted(rules, at);
    const bool is_quoted = end > at;
    while (!is_quoted && end < rules.size() && is_name(rules[end])) ++end;
    const std::string_view piece = rules.substr(at, std::max<size_t>(end - at, 1));
    at += piece.size();
    int32_t least = 0, most = 0;
    const size_t behind = at;
    if (is_quoted || !names.contains(piece)) {
      out += piece;
    } else if (rules.substr(at).starts_with(kPrinted)) {
      out.append(piece).append(" ::= ").append(kCharacter);
      at += kPrinted.size();
    } else if (!read_bounds(rules, at, least, most) || most < least || most < from) {
      out.append(piece).append(rules.substr(behind, at - behind));
    } else {
      const std::string count = std::to_string(least);
      const std::string budget = std::string(piece) + "_budget_" + std::to_string(most - least);
      if (most == 0) out += "\"\"";
      if (least > 0) out.append(piece).append("{").append(count).append(", ").append(count) += "} ";
      if (most == least) continue;
      out += budget;
      budgets.emplace(budget, most - least);
    }
  }
  if (budgets.empty() && from > 0) return std::string(rules);
  for (const auto& [name, count] : budgets) {
    out.append("\n").append(name).append("[max_chars=").append(std::to_string(count));
    out.append("] ::= ").append(kCharacter).append("*");
  }
  return out;
}

}  // namespace nibble
