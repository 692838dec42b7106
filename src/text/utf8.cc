#include "text/utf8.h"

#include <cstring>

namespace nibble::utf8 {
namespace {

// What may follow a lead byte: `length` bytes in all, the second within [low, high].
struct Lead {
  size_t length;
  uint8_t low, high;
};

Lead lead_of(uint8_t b) {
  if (b < 0x80) return {1, 0, 0};
  if (b < 0xC2) return {0, 0, 0};
  if (b < 0xE0) return {2, 0x80, 0xBF};
  if (b == 0xE0) return {3, 0xA0, 0xBF};
  if (b == 0xED) return {3, 0x80, 0x9F};  // no surrogates
  if (b < 0xF0) return {3, 0x80, 0xBF};
  if (b == 0xF0) return {4, 0x90, 0xBF};
  if (b < 0xF4) return {4, 0x80, 0xBF};
  if (b == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Unit first_unit(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const Lead lead = lead_of(byte(0));
  if (lead.length == 0) return {Kind::kBad, 1};
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {Kind::kUnfinished, i};
    const uint8_t low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xBF;
    if (byte(i) < low || byte(i) > high) return {Kind::kBad, i};
  }
  return {Kind::kCharacter, lead.length};
}

char32_t code_point(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(character[i]); };
  const auto tail = [&](size_t i) { return static_cast<char32_t>(byte(i) & 0x3F); };
  switch (character.size()) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1Fu) << 6 | tail(1);
    case 3:
      return (byte(0) & 0x0Fu) << 12 | tail(1) << 6 | tail(2);
    default:
      return (byte(0) & 0x07u) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3);
  }
}

void append(char32_t c, std::string& out) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (c >> shift & 0x3F)); };
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += {static_cast<char>(0xC0 | c >> 6), tail(0)};
  } else if (c < 0x10000) {
    out += {static_cast<char>(0xE0 | c >> 12), tail(6), tail(0)};
  } else {
    out += {static_cast<char>(0xF0 | c >> 18), tail(12), tail(6), tail(0)};
  }
}

size_t valid_prefix(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    // Eight ASCII bytes at a time.
    if (uint64_t word; i + sizeof word <= text.size()) {
      std::memcpy(&word, text.data() + i, sizeof word);
      if ((word & 0x8080808080808080u) == 0) {
        i += sizeof word;
        continue;
      }
    }
    const Unit unit = first_unit(text.substr(i));
    if (unit.kind != Kind::kCharacter) return i;
    i += unit.bytes;
  }
  return i;
}

size_t append_lossy(std::string_view bytes, bool at_end, std::string& out) {
  size_t i = 0;
  while (i < bytes.size()) {
    const size_t valid = valid_prefix(bytes.substr(i));
    out += bytes.substr(i, valid);
    i += valid;
    if (i == bytes.size()) break;
    const Unit unit = first_unit(bytes.substr(i));
    if (unit.kind == Kind::kUnfinished && !at_end) break;
    out += kReplacement;
    i += unit.bytes;
  }
  return i;
}

}  // namespace nibble::utf8
