// Prompts: worked examples by their ids, prefills, refusals.
#include <gtest/gtest.h>

#include "base/error.h"
#include "text/chat/harmony_for_test.h"
#include "text/chat/harmony_tools.h"
#include "text/tokenizer/o200k_for_test.h"

namespace nibble {
namespace {

using Ids = std::vector<int32_t>;

const Harmony& harmony() {
  static const Harmony harmony(o200k());
  return harmony;
}

ChatMessage user(const std::string& text) {
  ChatMessage message;
  message.content = text;
  return message;
}

ChatMessage assistant(const std::string& text, const std::string& reasoning = "") {
  ChatMessage message;
  message.role = Role::kAssistant;
  message.content = text;
  message.reasoning = reasoning;
  return message;
}

Chat chat_of(std::vector<ChatMessage> messages) {
  Chat chat;
  chat.messages = std::move(messages);
  return chat;
}

// The prompt as text, from the first message of role user or assistant on.
std::string tail(const Result<ChatPrompt>& prompt) {
  const std::string text = o200k().decode(prompt.value().ids);
  return text.substr(std::min(text.find("<|start|>user"), text.find("<|start|>assistant")));
}

std::string error(const Chat& chat) {
  const Result<ChatPrompt> prompt = harmony().render(chat);
  return prompt.ok() ? "no error" : prompt.error();
}

TEST(Harmony, Example1IdsOfAMinimalPrompt) {
  Chat chat = chat_of({user("What is 2 + 2?")});
  chat.options.current_date = "2025-06-28";
  const Ids expected = {200006, 17360,  200008, 3575,   553,   17554, 162016, 11,    261,    4410,
                        6439,   2359,   22203,  656,    7788,  17527, 558,    87447, 100594, 25,
                        220,    1323,   19,     12,     3218,  198,   6576,   3521,  25,     220,
                        1323,   20,     12,     3218,   12,    2029,  279,    30377, 289,    25,
                        14093,  279,    2,      13888,  18403, 25,    8450,   11,    49159,  11,
                        1721,   13,     21030,  2804,   413,   7360,  395,    1753,  3176,   13,
                        200007, 200006, 1428,   200008, 4827,  382,   220,    17,    659,    220,
                        17,     30,     200007, 200006, 173781};
  EXPECT_EQ(harmony().render(chat).value().ids, expected);
}

TEST(Harmony, StopIdsAreReturnAndCall) { EXPECT_EQ(harmony().stop_ids(), (Ids{200002, 200012})); }

// Examples 2, 5, 7 and 9: what the model samples, by the ids of the real vocabulary.
TEST(Harmony, SampledExamples) {
  struct Case {
    Ids ids;
    std::string expected;
  };
  const std::vector<Case> cases = {
      {{200005, 35644, 200008, 1844,  31064, 25,  392,   4827, 382, 220,    17,     659,
        220,    17,    16842,  12295, 81645, 13,  51441, 6052, 13,  200007, 200006, 173781,
        200005, 17196, 200008, 17,    659,   220, 17,    314,  220, 19,     13,     200002},
       "reasoning [analysis] User asks: \"What is 2 + 2?\" Simple arithmetic. Provide answer.\n"
       "content [assistantfinal] 2 + 2 = 4.\n"},
      {{200005, 35644, 200008, 23483, 717,   69488, 13,    200007, 200006, 173781, 200005,
        12606,  815,   316,    28,    44580, 775,   69488, 220,    200003, 4108,   200008,
        10848,  49616, 7534,   32,    22,    4294,  94736, 7534,   14914,  18583,  200012},
       "reasoning [analysis] Need get_stock.\n"
       "call get_stock [assistantcommentary to=functions.get_stock json] "
       "{\"sku\":\"A7\",\"warehouse\":\"west\"}\n"},
      {{200005, 17196, 220, 200003, 4108, 200008, 10848, 525, 1243, 3309, 92, 200002},
       "content [final json] {\"ok\":true}\n"},
      {{200005, 17196, 200008, 5632, 553, 220, 899, 13, 200002},
       "content [final] There are 12.\n"}};
  for (const Case& c : cases) {
    HarmonyParser parser(harmony());
    std::vector<HarmonyEvent> events;
    for (const int32_t id : c.ids) parser.push(id, events);
    EXPECT_EQ(trace(events), c.expected);
    EXPECT_EQ(parser.counts().malformed, 0);
  }
}

TEST(Harmony, ReasoningTokensAreThoseOfAnalysisText) {
  HarmonyParser parser(harmony());
  std::vector<HarmonyEvent> events;
  for (const int32_t id : {200005, 35644, 200008, 23483, 717, 69488, 13, 200007, 200006, 173781,
                           200005, 17196, 200008, 5632, 553, 220, 899, 13, 200002}) {
    parser.push(id, events);
  }
  EXPECT_EQ(parser.counts().reasoning_tokens, 4);
}

TEST(Harmony, UserTextNeverBecomesSpecialTokens) {
  const Ids ids = harmony().render(chat_of({user("<|start|>")})).value().ids;
  const Ids spelled = {200006, 1428, 200008, 27, 91, 5236, 91, 29, 200007, 200006, 173781};
  ASSERT_GT(ids.size(), spelled.size());
  EXPECT_EQ(Ids(ids.end() - spelled.size(), ids.end()), spelled);
}

TEST(Harmony, AnyVocabularyWithTheSpecialTokensWillDo) {
  const Harmony other(byte_tokenizer());
  const auto prompt = other.render(chat_of({user("<|end|>")}));
  const std::string text = byte_tokenizer().decode(prompt.value().ids);
  EXPECT_TRUE(text.ends_with("<|start|>user<|message|><|end|><|end|><|start|>assistant")) << text;
  EXPECT_EQ(std::count(prompt.value().ids.begin(), prompt.value().ids.end(), other.ids().end), 2);
}

TEST(Harmony, NamesWhatAVocabularyLacks) {
  const Tokenizer plain = make_byte_tokenizer({"start"});
  EXPECT_FALSE(Harmony::fits(plain));
  EXPECT_TRUE(Harmony::fits(byte_tokenizer()));
  try {
    const Harmony harmony(plain);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(std::string(e.what()).find("no <|end|>, <|message|>"), std::string::npos) << e.what();
  }
}

TEST(Harmony, SkippingReasoningStartsInTheFinalChannel) {
  Chat chat = chat_of({user("Hi")});
  chat.options.skip_reasoning = true;
  const auto prompt = harmony().render(chat);
  const Ids& ids = prompt.value().ids;
  EXPECT_EQ(Ids(ids.end() - 5, ids.end()), (Ids{200006, 173781, 200005, 17196, 200008}));
  EXPECT_TRUE(prompt.value().start.in_content);
  EXPECT_EQ(prompt.value().start.header.channel, "final");
}

TEST(Harmony, ContinuesAnUnfinishedAnswerWithItsReasoning) {
  Chat chat = chat_of({user("a"), assistant("A", "old"), user("b"), assistant("Once upon", "new")});
  chat.options.continue_final_message = true;
  const auto prompt = harmony().render(chat);
  EXPECT_EQ(tail(prompt),
            "<|start|>user<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>A<|end|>"
            "<|start|>user<|message|>b<|end|><|start|>assistant<|channel|>analysis<|message|>new"
            "<|end|><|start|>assistant<|channel|>final<|message|>Once upon");
  EXPECT_EQ(prompt.value().start.header.channel, "final");
}

TEST(Harmony, ContinuesUnfinishedReasoning) {
  Chat chat = chat_of({user("b"), assistant("", "Let me")});
  chat.options.continue_final_message = true;
  const auto prompt = harmony().render(chat);
  EXPECT_EQ(
      tail(prompt),
      "<|start|>user<|message|>b<|end|><|start|>assistant<|channel|>analysis<|message|>Let me");
  EXPECT_EQ(prompt.value().start.header.channel, "analysis");
}

TEST(Harmony, ANamedToolChoiceStartsInsideTheCall) {
  Chat chat = chat_of({user("b")});
  chat.tools = {{.name = "f", .description = "", .parameters = ""}};
  chat.options.tool_choice = {.kind = ToolChoice::Kind::kNamed, .name = "f"};
  const auto prompt = harmony().render(chat);
  EXPECT_EQ(
      tail(prompt),
      "<|start|>user<|message|>b<|end|><|start|>assistant to=functions.f<|channel|>commentary "
      "<|constrain|>json<|message|>");
  EXPECT_EQ(prompt.value().start.header.recipient, "functions.f");
  chat.options.tool_choice.name = "g";
  EXPECT_EQ(error(chat), "tool_choice: function 'g' is not among the tools");
}

TEST(Harmony, ResponseFormatIsASectionOfTheDeveloper) {
  Chat chat = chat_of({{.role = Role::kSystem,
                        .content = "Be brief.",
                        .name = "",
                        .reasoning = "",
                        .tool_calls = {},
                        .tool_call_id = ""},
                       user("Hi")});
  chat.tools = {{.name = "f", .description = "", .parameters = ""}};
  chat.options.response_format = {
      .name = "list",
      .description = "Things",
      .schema = "{ \"type\": \"object\", \"b\": 1,\n \"a\": [ 2.50 ] }"};
  const std::string text = o200k().decode(harmony().render(chat).value().ids);
  EXPECT_NE(text.find("<|start|>developer<|message|># Instructions\n\nBe brief.\n\n# Tools\n\n"),
            std::string::npos);
  EXPECT_NE(text.find("} // namespace functions\n\n# Response Formats\n\n## list\n\n// Things\n"
                      "{\"type\":\"object\",\"b\":1,\"a\":[2.5]}<|end|>"),
            std::string::npos)
      << text;
}

TEST(Harmony, LaterInstructionsAreTheDevelopers) {
  const auto instructions = [](Role role, const char* text) {
    ChatMessage message = user(text);
    message.role = role;
    return message;
  };
  const auto text_of = [](const std::vector<ChatMessage>& messages) {
    return o200k().decode(harmony().render(chat_of(messages)).value().ids);
  };
  const auto count = [](const std::string& text, std::string_view piece) {
    int n = 0;
    for (size_t at = text.find(piece); at != text.npos; at = text.find(piece, at + 1)) ++n;
    return n;
  };
  // A second system message would outrank the developer's first.
  const std::string text =
      text_of({instructions(Role::kSystem, "One."), user("Hi"), instructions(Role::kSystem, "Two."),
               instructions(Role::kDeveloper, "Three.")});
  EXPECT_EQ(count(text, "<|start|>system<|message|>"), 1);
  EXPECT_NE(text.find("<|start|>developer<|message|># Instructions\n\nOne."), text.npos) << text;
  EXPECT_NE(text.find("<|start|>user<|message|>Hi<|end|><|start|>developer<|message|>Two.<|end|>"
                      "<|start|>developer<|message|>Three.<|end|>"),
            text.npos)
      << text;
  const std::string plain = text_of({user("Hi")});
  EXPECT_EQ(count(plain, "developer"), 0);
  for (const Role role : {Role::kSystem, Role::kDeveloper}) {
    EXPECT_EQ(text_of({instructions(role, ""), user("Hi")}), plain);
    EXPECT_EQ(text_of({user("Hi"), instructions(role, "")}), plain);
  }
}

TEST(Harmony, RefusesWithATextForTheCaller) {
  EXPECT_EQ(error(chat_of({})), "messages: at least one is needed");
  ChatMessage result = user("12");
  result.role = Role::kTool;
  result.tool_call_id = "c9";
  EXPECT_EQ(error(chat_of({user("a"), result})),
            "messages[1]: tool_call_id 'c9' is that of no tool call before it");
  ChatMessage caller = assistant("");
  caller.tool_calls = {{.id = "c", .name = "f to=user", .arguments = "{}"}};
  EXPECT_EQ(
      error(chat_of({user("a"), caller})),
      "messages[1].tool_calls: name 'f to=user' must be 1 to 256 of the characters a-z A-Z 0-9 _ "
      "- . : /");
  ChatMessage named = user("a");
  named.name = "ann to=functions.f";
  EXPECT_TRUE(error(chat_of({named})).starts_with("messages[0]: name 'ann to=functions.f' must"));
  Chat chat = chat_of({user("a")});
  chat.tools = {{.name = "", .description = "", .parameters = ""}};
  EXPECT_TRUE(error(chat).starts_with("tools[0]: name '' must"));
  chat.tools = {{.name = "f", .description = "", .parameters = "{\"type\":"}};
  EXPECT_EQ(error(chat), "tools: the schema of function 'f' is not valid JSON");
  chat.tools[0].parameters = "[]";
  EXPECT_EQ(error(chat), "tools: the schema of function 'f' is not a JSON object");
  chat.tools[0].parameters = std::string(500, '[') + std::string(500, ']');
  EXPECT_EQ(error(chat), "tools: the schema of function 'f' is nested deeper than 100");
  chat = chat_of({user("a")});
  chat.options.continue_final_message = true;
  EXPECT_EQ(error(chat),
            "continue_final_message: the last message must be an assistant's without tool calls");
  chat.options = {};
  chat.options.response_format = {.name = "x", .description = "", .schema = "{"};
  EXPECT_EQ(error(chat), "response_format: the schema is not valid JSON");
}

TEST(Chat, NamesOfRolesAndEfforts) {
  for (const char* name : {"system", "developer", "user", "assistant", "tool"}) {
    EXPECT_EQ(role_name(*parse_role(name)), name);
  }
  EXPECT_EQ(parse_role("function").error(),
            "role 'function' is not known: use system, developer, user, assistant or tool");
  for (const char* name : {"low", "medium", "high"}) {
    EXPECT_EQ(reasoning_effort_name(*parse_reasoning_effort(name)), name);
  }
  for (const char* name : {"none", "minimal"}) {
    EXPECT_EQ(*parse_reasoning_effort(name), ReasoningEffort::kLow);
  }
  for (const char* name : {"xhigh", "max"}) {
    EXPECT_EQ(*parse_reasoning_effort(name), ReasoningEffort::kHigh);
  }
  EXPECT_EQ(parse_reasoning_effort("much").error(),
            "reasoning_effort 'much' is not known: use none, minimal, low, medium, high, xhigh or "
            "max");
}

}  // namespace
}  // namespace nibble
