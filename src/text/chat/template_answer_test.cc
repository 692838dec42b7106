// Answers of models that speak a template, in each tool format, as whole tokens, as bytes, and cut
// at every place.
#include "text/chat/template_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/chat/chat_stream.h"

namespace nibble {
namespace {

const Tokenizer& qwen() {
  static const Tokenizer tokenizer =
      Tokenizer::load(NIBBLE_SOURCE_DIR "/tests/data/tokenizers/qwen2");
  return tokenizer;
}

const Tokenizer& llama() {
  static const Tokenizer tokenizer =
      Tokenizer::load(NIBBLE_SOURCE_DIR "/tests/data/tokenizers/llama3");
  return tokenizer;
}

// Only what makes a parser.
class ParserOnly : public ChatFormat {
 public:
  ParserOnly(const Tokenizer& tokenizer, AnswerMarkup markup)
      : tokenizer_(tokenizer), markup_(markup) {}
  Result<ChatPrompt> render(const Chat&, const TakeBytes&) const override { return Failure{""}; }
  std::unique_ptr<AnswerParser> parser(const ChatStreamOptions& options) const override {
    return std::make_unique<TemplateAnswer>(tokenizer_, markup_, options);
  }
  std::shared_ptr<TokenWatcher> watcher(const ChatStreamOptions&) const override { return nullptr; }
  std::vector<WantedGrammar> forms(const Chat&,
                                   const std::optional<WantedGrammar>&) const override {
    return {};
  }
  void take_forms(const Chat&, bool, std::vector<Grammar>, ChatStreamOptions&) const override {}
  std::vector<int32_t> stop_ids(std::vector<int32_t> of_files) const override { return of_files; }

 private:
  const Tokenizer& tokenizer_;
  AnswerMarkup markup_;
};

struct Expected {
  std::string reasoning, content;
  std::vector<std::pair<std::string, std::string>> calls = {};
};

void expect_reply(const ChatReply& reply, const Expected& expected, const std::string& how) {
  EXPECT_EQ(reply.reasoning, expected.reasoning) << how;
  EXPECT_EQ(reply.content, expected.content) << how;
  ASSERT_EQ(reply.tool_calls.size(), expected.calls.size()) << how;
  for (size_t i = 0; i < expected.calls.size(); ++i) {
    EXPECT_EQ(reply.tool_calls[i].name, expected.calls[i].first) << how;
    EXPECT_EQ(reply.tool_calls[i].arguments, expected.calls[i].second) << how;
  }
}

ChatReply reply_to(const ParserOnly& format, const ChatStreamOptions& options,
                   const std::vector<int32_t>& ids) {
  ChatStream stream(format, options);
  ChatDelta joined;
  for (const int32_t id : ids) joined.append(stream.push(id));
  joined.append(stream.finish());
  EXPECT_EQ(joined.content, stream.reply().content);
  EXPECT_EQ(joined.reasoning, stream.reply().reasoning);
  return stream.reply();
}

// One token a byte; the two halves of `text`, each as its own tokens, for every place to cut.
void expect_all_ways(const Tokenizer& tokenizer, AnswerMarkup markup,
                     const ChatStreamOptions& options, const std::string& text,
                     const Expected& expected) {
  const ParserOnly format(tokenizer, markup);
  expect_reply(reply_to(format, options, tokenizer.encode(text, Specials::kRecognize)), expected,
               "tokens: " + text);
  std::vector<int32_t> bytes;
  for (const char c : text) {
    for (const int32_t id : tokenizer.encode(std::string(1, c), Specials::kNone))
      bytes.push_back(id);
  }
  expect_reply(reply_to(format, options, bytes), expected, "bytes: " + text);
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    std::vector<int32_t> ids = tokenizer.encode(text.substr(0, cut), Specials::kRecognize);
    const auto rest = tokenizer.encode(text.substr(cut), Specials::kRecognize);
    ids.insert(ids.end(), rest.begin(), rest.end());
    expect_reply(reply_to(format, options, ids), expected,
                 "cut at " + std::to_string(cut) + ": " + text);
  }
}

// Of a form: what the watcher lets pass before it is dropped, and nothing of the form itself.
TEST(TemplateAnswer, KeepsTheNewlinesOfAForm) {
  const AnswerMarkup markup{.tools = ToolFormat::kNone, .think = true};
  static const Tokenizer tokenizer =
      Tokenizer::load(NIBBLE_SOURCE_DIR "/models/nibble-tiny-qwen3-next");
  const ParserOnly format(tokenizer, markup);
  const int32_t one = tokenizer.find_text("\n"), two = tokenizer.find_text("\n\n");
  ASSERT_TRUE(one >= 0 && two >= 0);
  const auto content = [&](const std::vector<int32_t>& behind, bool has_form) {
    ChatStreamOptions options;
    options.in_reasoning = true;
    if (has_form) options.must = HeaderRules::Must::kAnswer;
    ChatStream stream(format, options);
    for (const int32_t id : tokenizer.encode("a</think>", Specials::kRecognize)) stream.push(id);
    for (const int32_t id : behind) stream.push(id);
    stream.finish();
    EXPECT_EQ(stream.reply().reasoning, "a");
    return stream.reply().content;
  };
  const int32_t y = tokenizer.find_text("y");
  EXPECT_EQ(content({two, y}, true), "y");
  EXPECT_EQ(content({one, one, one}, true), "\n");
  EXPECT_EQ(content({two, one, two, y}, true), "\n\ny");
  EXPECT_EQ(content({y, two, two}, true), "y\n\n\n\n");
  EXPECT_EQ(content({two, one, two, y}, false), "y");
}

ChatStreamOptions with_tools(bool in_reasoning = false) {
  ChatStreamOptions options;
  options.in_reasoning = in_reasoning;
  options.tools = std::make_shared<std::vector<FunctionTool>>(std::vector<FunctionTool>{
      {.name = "get_weather",
       .description = "",
       .parameters = R"({"type":"object","properties":{"city":{"type":"string"},
                        "days":{"type":"integer"},"exact":{"type":"boolean"},
                        "places":{"type":"array"},"any":{"anyOf":[{"type":"integer"}]}}})"},
      {.name = "now", .description = "", .parameters = ""}});
  return options;
}

constexpr AnswerMarkup kHermes{.tools = ToolFormat::kHermes, .think = true};
constexpr AnswerMarkup kCoder{.tools = ToolFormat::kQwen3Coder, .think = true};
constexpr AnswerMarkup kLlama{.tools = ToolFormat::kLlama3Json};

TEST(TemplateAnswer, TellsReasoningFromContent) {
  const auto check = [](const ChatStreamOptions& options, const std::string& text,
                        const Expected& expected) {
    expect_all_ways(qwen(), kHermes, options, text, expected);
  };
  check({}, "Just text.\n", {"", "Just text.\n"});
  check({}, "<think>\nHmm.\n</think>\n\nYes.", {"Hmm.", "Yes."});
  check({}, "\n<think>Hmm</think>Yes <b>", {"Hmm", "Yes <b>"});
  check({}, "<think>\n\n</think>\n\nYes", {"", "Yes"});
  check({}, "<thin air", {"", "<thin air"});
  check({}, "a <think>b</think>", {"", "a <think>b</think>"});
  check(with_tools(true), "Hmm.\n a \n</think>\n\nYes.", {"Hmm.\n a", "Yes."});
  check(with_tools(true), "never ends </thin", {"never ends </thin", ""});
}

// What a broken call goes on with is text from a whole character on, or the next call.
TEST(TemplateAnswer, GoesOnBehindABrokenCall) {
  const std::string now = "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": 1}";
  const Expected called{"", "", {{"now", "{\"a\": 1}"}}};
  expect_all_ways(qwen(), kHermes, with_tools(), now + "ü}", {"", "ü}", called.calls});
  expect_all_ways(qwen(), kHermes, with_tools(), now + "<tool_call>{\"name\": \"now\"}</tool_call>",
                  {"", "", {{"now", "{\"a\": 1}"}, {"now", "{}"}}});
}

// A model that makes up a function has not called one.
TEST(TemplateAnswer, CallsOnlyWhatIsOffered) {
  const auto check = [](const Tokenizer& tokenizer, AnswerMarkup markup, const std::string& text) {
    expect_all_ways(tokenizer, markup, with_tools(), text, {"", text});
  };
  check(qwen(), kHermes, "<tool_call>{\"name\": \"then\", \"arguments\": {}}</tool_call>");
  check(qwen(), kHermes, "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"no\"}</tool_call>");
  check(qwen(), kCoder, "<tool_call>\n<function=then>\n</function>\n</tool_call>");
  check(llama(), kLlama, "{\"name\": \"then\", \"parameters\": {}}");
}

TEST(TemplateAnswer, ReadsHermes) {
  const auto check = [](const std::string& text, const Expected& expected) {
    expect_all_ways(qwen(), kHermes, with_tools(), text, expected);
  };
  check(
      "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
      "\"Z\\\"ü}</tool_call>\"}}\n"
      "</tool_call>",
      {"", "", {{"get_weather", "{\"city\": \"Z\\\"ü}</tool_call>\"}"}}});
  check(
      "<think>\nA call.\n</think>\n\nLet me see. \n<tool_call>{\"arguments\": {\"a\": [1, {}]}, "
      "\"name\": \"now\"}</tool_call>\n<tool_call>\n{\"name\": \"now\"}\n</tool_call>",
      {"A call.", "Let me see.", {{"now", "{\"a\": [1, {}]}"}, {"now", "{}"}}});
  check("<tool_call>{\"name\": \"now\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call> Done.",
        {"", " Done.", {{"now", "{\"a\": 1}"}}});
  check("<tool_call>no call</tool_call>", {"", "<tool_call>no call</tool_call>"});
  check("<tool_call>{\"nam\": 1}</tool_call>", {"", "<tool_call>{\"nam\": 1}</tool_call>"});
  check("a <tool_call>{\"name\": \"now\"", {"", "a\n<tool_call>{\"name\": \"now\""});
  check("<tool_cal", {"", "<tool_cal"});
  // Cut off in its arguments: what there is.
  check("<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": 1",
        {"", "", {{"now", "{\"a\": 1"}}});
}

TEST(TemplateAnswer, ReadsQwen3Coder) {
  const auto check = [](const std::string& text, const Expected& expected) {
    expect_all_ways(qwen(), kCoder, with_tools(), text, expected);
  };
  check(
      "Here:\n<tool_call>\n<function=get_weather>\n<parameter=city>\nNew\n York\n</parameter>\n"
      "<parameter=days>\n3\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n"
      "<parameter=places>\n[1, \"b\"]\n</parameter>\n<parameter=any>7</parameter>\n</function>\n"
      "</tool_call>",
      {"",
       "Here:",
       {{"get_weather",
         R"({"city": "New\n York", "days": 3, "exact": true, "places": [1, "b"], "any": 7})"}}});
  check(
      "<tool_call>\n<function=now>\n</function>\n</"
      "tool_call>\n<tool_call>\n<function=get_weather>\n"
      "<parameter=city>\nnull\n</parameter>\n<parameter=days>\nmany\n</parameter>\n</function>\n"
      "</tool_call>",
      {"", "", {{"now", "{}"}, {"get_weather", R"({"city": "null", "days": "many"})"}}});
  // Its end alone ends a parameter.
  check(
      "<tool_call>\n<function=get_weather>\n<parameter=city>\n</function>\n<parameter=x>\n</"
      "parameter>\n"
      "</function>\n</tool_call>",
      {"", "", {{"get_weather", R"({"city": "</function>\n<parameter=x>"})"}}});
  check("<tool_call>\n<function=now>\n<parameter=x>\n5\n<parameter=y>\nz</function></tool_call>",
        {"", "", {{"now", R"({"x": "5", "y": "z"})"}}});
  check("<tool_call>words", {"", "<tool_call>words"});
}

TEST(TemplateAnswer, ReadsLlama3Json) {
  const auto check = [](const std::string& text, const Expected& expected) {
    expect_all_ways(llama(), kLlama, with_tools(), text, expected);
  };
  check("{\"name\": \"now\", \"parameters\": {\"a\": 1}}", {"", "", {{"now", "{\"a\": 1}"}}});
  check(
      "<|python_tag|>{\"name\": \"now\", \"arguments\": {}}; {\"name\": \"now\", \"parameters\": "
      "{}}",
      {"", "", {{"now", "{}"}, {"now", "{}"}}});
  check("{\"name\": \"Bob\", \"age\": 3}", {"", "{\"name\": \"Bob\", \"age\": 3}"});
  check("Hello {\"name\": \"now\", \"parameters\": {}}",
        {"", "Hello {\"name\": \"now\", \"parameters\": {}}"});
}

TEST(TemplateAnswer, WithoutToolsNothingIsACall) {
  const std::string text = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
  expect_all_ways(qwen(), kHermes, {}, text, {"", text});
  expect_all_ways(llama(), kLlama, {}, "{\"name\": \"a\", \"parameters\": {}}",
                  {"", "{\"name\": \"a\", \"parameters\": {}}"});
}

TEST(TemplateAnswer, DropsTheEnd) {
  expect_all_ways(qwen(), {.tools = ToolFormat::kNone}, {}, "Yes.", {"", "Yes."});
  const ParserOnly format(qwen(), kHermes);
  expect_reply(reply_to(format, {}, qwen().encode("Yes.<|im_end|>", Specials::kRecognize)),
               {"", "Yes."}, "with its end");
}

}  // namespace
}  // namespace nibble
