// ChatPrinter: a streamed answer on standard output.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "text/chat/chat.h"

namespace nibble::cli {

// `text` without what a terminal would obey: control characters but newline and tab become U+FFFD.
std::string printable(std::string_view text);

class ChatPrinter {
 public:
  // terminal: dims reasoning and makes text printable; else text goes out as it is.
  ChatPrinter(std::FILE* out, bool terminal, bool show_reasoning)
      : out_(out), terminal_(terminal), show_reasoning_(show_reasoning) {}

  void print(const ChatEvent& event);
  // After the last event: ends the line, resets the terminal.
  void finish();

 private:
  void write(std::string_view text);
  void dim(bool on);

  std::FILE* out_;
  bool terminal_;
  bool show_reasoning_;
  bool dimmed_ = false;
  bool mid_line_ = false;
};

}  // namespace nibble::cli
