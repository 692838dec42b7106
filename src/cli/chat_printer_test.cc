#include "cli/chat_printer.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

namespace nibble::cli {
namespace {

using Kind = ChatEvent::Kind;

ChatEvent event(Kind kind, ChatPart part, std::string text = "") {
  ChatEvent e;
  e.kind = kind;
  e.part = part;
  e.text = std::move(text);
  return e;
}

std::string printed(const std::vector<ChatEvent>& events, bool terminal, bool show_reasoning) {
  char* text = nullptr;
  size_t length = 0;
  std::FILE* out = open_memstream(&text, &length);
  ChatPrinter printer(out, terminal, show_reasoning);
  for (const ChatEvent& e : events) printer.print(e);
  printer.finish();
  std::fclose(out);
  std::string result(text, length);
  std::free(text);
  return result;
}

const std::vector<ChatEvent> kAnswer = {
    event(Kind::kBegin, ChatPart::kReasoning),    event(Kind::kText, ChatPart::kReasoning, "think"),
    event(Kind::kEnd, ChatPart::kReasoning),      event(Kind::kBegin, ChatPart::kContent),
    event(Kind::kText, ChatPart::kContent, "an"), event(Kind::kText, ChatPart::kContent, "swer"),
    event(Kind::kEnd, ChatPart::kContent),
};

TEST(ChatPrinter, TerminalDimsReasoning) {
  EXPECT_EQ(printed(kAnswer, true, true), "\x1b[2mthink\x1b[0m\nanswer\n");
}

TEST(ChatPrinter, PipeGetsTheAnswerAlone) {
  EXPECT_EQ(printed(kAnswer, false, false), "answer\n");
  EXPECT_EQ(printed(kAnswer, false, true), "think\nanswer\n");
}

TEST(ChatPrinter, AnAnswerCutShortLeavesTheTerminalAsItWas) {
  const std::vector<ChatEvent> cut(kAnswer.begin(), kAnswer.begin() + 2);
  EXPECT_EQ(printed(cut, true, true), "\x1b[2mthink\x1b[0m\n");
}

TEST(ChatPrinter, ModelsCannotDriveTheTerminal) {
  EXPECT_EQ(printable("a\x1b[2Jb\r\x7f\n\tc"), "a\xEF\xBF\xBD[2Jb\xEF\xBF\xBD\xEF\xBF\xBD\n\tc");
  EXPECT_EQ(printable("\xC2\x9B"
                      "1m"),
            "\xEF\xBF\xBD"
            "1m");  // the 8-bit CSI
  EXPECT_EQ(printable("\xC2\xA0\xC3\xA9\xE2\x82\xAC"), "\xC2\xA0\xC3\xA9\xE2\x82\xAC");
}

}  // namespace
}  // namespace nibble::cli
