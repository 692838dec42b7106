#include "text/tokenizer/added_tokens.h"

#include <algorithm>

#include "text/utf8.h"

namespace nibble {
namespace {

bool is_white_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// The last character of a text; empty where it is not well-formed.
std::string_view last_character(std::string_view text) {
  for (size_t n = 1; n <= 4 && n <= text.size(); ++n) {
    const std::string_view tail = text.substr(text.size() - n);
    const utf8::Unit unit = utf8::first_unit(tail);
    if (unit.kind == utf8::Kind::kCharacter && unit.bytes == n) return tail;
  }
  return {};
}

std::string_view first_character(std::string_view text) {
  if (text.empty()) return {};
  const utf8::Unit unit = utf8::first_unit(text);
  return unit.kind == utf8::Kind::kCharacter ? text.substr(0, unit.bytes) : std::string_view();
}

}  // namespace

AddedTokens::AddedTokens()
    : token_at_(1, -1),
      word_(
          "[\\p{L}\\p{Nl}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}\\x{24b6}-\\x{24e9}"
          "\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}]",
          "word characters") {}

void AddedTokens::add(const AddedToken& token) {
  uint32_t node = 0;
  for (const char c : token.content) {
    const uint64_t key = uint64_t{node} << 8 | static_cast<uint8_t>(c);
    const auto [edge, is_new] = edges_.try_emplace(key, static_cast<uint32_t>(token_at_.size()));
    if (is_new) token_at_.push_back(-1);
    node = edge->second;
  }
  token_at_[node] = static_cast<int>(tokens_.size());
  first_byte_[static_cast<uint8_t>(token.content[0])] = true;
  all_special_ = all_special_ && token.special;
  tokens_.push_back(token);
}

int AddedTokens::longest_at(std::string_view text) const {
  int best = -1;
  uint32_t node = 0;
  for (const char c : text) {
    const auto edge = edges_.find(uint64_t{node} << 8 | static_cast<uint8_t>(c));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (token_at_[node] >= 0) best = token_at_[node];
  }
  return best;
}

bool AddedTokens::is_single_word(std::string_view text, size_t begin, size_t end,
                                 MatchSpace& space) const {
  const auto is_word = [&](std::string_view character) {
    size_t b, e;
    return !character.empty() && word_.find(character, 0, space, b, e);
  };
  return !is_word(last_character(text.substr(0, begin))) &&
         !is_word(first_character(text.substr(end)));
}

bool AddedTokens::find(std::string_view text, size_t from, bool specials, MatchSpace& space,
                       Match& match) const {
  for (size_t i = from; i < text.size();) {
    const int found = first_byte_[static_cast<uint8_t>(text[i])] ? longest_at(text.substr(i)) : -1;
    if (found < 0) {
      ++i;
      continue;
    }
    const AddedToken& token = tokens_[found];
    size_t begin = i, end = i + token.content.size();
    i = end;  // a match that is passed over is not looked into
    if (token.special && !specials) continue;
    if (token.single_word && !is_single_word(text, begin, end, space)) continue;
    if (token.lstrip) {
      for (;;) {
        const std::string_view c = last_character(text.substr(from, begin - from));
        if (c.empty() || !is_white_space(utf8::code_point(c))) break;
        begin -= c.size();
      }
    }
    if (token.rstrip) {
      for (;;) {
        const std::string_view c = first_character(text.substr(end));
        if (c.empty() || !is_white_space(utf8::code_point(c))) break;
        end += c.size();
      }
    }
    match = {begin, end, token.id};
    return true;
  }
  return false;
}

}  // namespace nibble
