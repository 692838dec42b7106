// Reading the header that a model wrote, well-formed or not. Pure functions of text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat/harmony.h"

namespace nibble {

// Whether names in headers (of functions, users, recipients) may hold the character.
bool is_harmony_name_char(char c);

// How far the header has come.
enum class HeaderEnd {
  kOpen,     // more of it may come
  kMessage,  // <|message|> ended it
  kCut       // the message ended, or the header stopped being one, without <|message|>
};

struct HeaderReading {
  HarmonyHeader header;
  size_t used = 0;    // bytes of the text that are header; what follows is content
  bool clean = true;  // just as the format has it
};

// kOpen: used < text.size() means that this can no longer be a header. kMessage: all is used,
// understood or not. kCut: only what is surely header is used, and the spaces behind it.
HeaderReading read_header(const HarmonyHeaderText& text, HeaderEnd end);

}  // namespace nibble
