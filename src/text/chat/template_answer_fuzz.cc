// Any ids as the answer of a model that speaks a template. Input: one byte for the tool format and
// what the answer begins with, then text, its special tokens spelled out.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "text/chat/harmony_for_test.h"
#include "text/chat/template_answer.h"

namespace {

using namespace nibble;

std::string told(const std::vector<ChatEvent>& events) {
  std::string out;
  for (const ChatEvent& event : events) {
    out +=
        std::to_string(static_cast<int>(event.kind)) + std::to_string(static_cast<int>(event.part));
    out += event.function + "|" + event.text + "\n";
  }
  return out;
}

// Begin, text and end take turns, and only functions that were offered are called.
void check_events(const std::vector<ChatEvent>& events, bool has_tools) {
  bool open = false;
  ChatPart part = ChatPart::kContent;
  for (const ChatEvent& event : events) {
    using Kind = ChatEvent::Kind;
    CHECK(event.kind != Kind::kStray);
    CHECK(open == (event.kind != Kind::kBegin));
    CHECK(event.kind == Kind::kBegin || event.part == part);
    CHECK(event.kind != Kind::kText || !event.text.empty());
    CHECK(utf8::valid_prefix(event.text) == event.text.size());
    if (event.part == ChatPart::kToolCall) CHECK(has_tools);
    if (event.kind == Kind::kBegin) {
      part = event.part;
      CHECK((part == ChatPart::kToolCall) == !event.function.empty());
      CHECK(event.function.empty() || event.function == "f" || event.function == "g");
    }
    open = event.kind != Kind::kEnd;
  }
  CHECK(!open);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer tokenizer = make_byte_tokenizer(
      {"return", "<think>", "</think>", "<tool_call>", "</tool_call>", "python_tag"});
  if (size == 0 || size > 1024) return 0;
  const AnswerMarkup markup{.tools = static_cast<ToolFormat>(data[0] % 4),
                            .think = (data[0] & 4) != 0};
  ChatStreamOptions options;
  options.in_reasoning = markup.think && (data[0] & 8) != 0;
  if ((data[0] & 16) == 0) {
    options.tools = std::make_shared<std::vector<FunctionTool>>(std::vector<FunctionTool>{
        {.name = "f",
         .description = "",
         .parameters = R"({"type":"object","properties":{"x":{"type":"integer"},
                          "y":{"type":"array"},"z":{"type":"string"}}})"},
        {.name = "g", .description = "", .parameters = ""}});
  }
  const bool has_tools = options.tools && markup.tools != ToolFormat::kNone;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);

  TemplateAnswer answer(tokenizer, markup, options);
  Detokenizer plain(tokenizer);
  std::string all;
  std::vector<ChatEvent> events;
  int step = 0;
  for (const int32_t id : tokenizer.encode(text, Specials::kRecognize)) {
    std::vector<ChatEvent> now, now_of_copy;
    if (++step % 16 == 0) {  // a copy goes on as the answer itself does
      TemplateAnswer copy = answer;
      copy.push(id, now_of_copy);
      answer.push(id, now);
      CHECK(told(now) == told(now_of_copy));
      answer = copy;
    } else {
      answer.push(id, now);
    }
    events.insert(events.end(), now.begin(), now.end());
    all += plain.push(id);
  }
  answer.finish(events);
  all += plain.flush();
  check_events(events, has_tools);
  std::string joined;
  for (const ChatEvent& event : events) joined += event.text;
  // Without markup everything is content.
  if (!has_tools && !markup.think && all.find("<|") == all.npos) CHECK(joined == all);
  CHECK(answer.reasoning_tokens() <= step);
  return 0;
}
