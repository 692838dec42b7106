#include "cli/chat_printer.h"

namespace nibble::cli {

std::string printable(std::string_view text) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F, the 8-bit controls, are C2 80 to C2 9F.
    const bool c1 =
        byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (c1) ++i;
    const bool c0 = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F;
    if (c0 || c1)
      out += kReplacement;
    else
      out += text[i];
  }
  return out;
}

void ChatPrinter::dim(bool on) {
  if (on == dimmed_) return;
  dimmed_ = on;
  if (terminal_) std::fputs(on ? "\x1b[2m" : "\x1b[0m", out_);
}

void ChatPrinter::write(std::string_view text) {
  if (text.empty()) return;
  const std::string safe = terminal_ ? printable(text) : std::string(text);
  std::fwrite(safe.data(), 1, safe.size(), out_);
  std::fflush(out_);
  mid_line_ = safe.back() != '\n';
}

void ChatPrinter::print(const ChatEvent& event) {
  const bool reasoning = event.part == ChatPart::kReasoning;
  if (reasoning && !show_reasoning_) return;
  switch (event.kind) {
    case ChatEvent::Kind::kBegin:
      dim(reasoning);
      if (event.part == ChatPart::kToolCall) write("[call of " + event.function + "] ");
      break;
    case ChatEvent::Kind::kText:
      write(event.text);
      break;
    case ChatEvent::Kind::kEnd:
      dim(false);
      if (mid_line_) write("\n");
      break;
    case ChatEvent::Kind::kStray:
      write(event.text);
      break;
  }
}

void ChatPrinter::finish() {
  dim(false);
  if (mid_line_) write("\n");
  std::fflush(out_);
}

}  // namespace nibble::cli
