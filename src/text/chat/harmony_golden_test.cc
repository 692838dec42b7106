// Harmony against the openai-harmony package, id for id: tests/goldens/harmony.json, written by
// tools/write_harmony_goldens.py.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "text/chat/harmony.h"
#include "text/chat/harmony_tools.h"
#include "text/tokenizer/o200k_for_test.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

const Json& goldens() {
  static const Json all =
      Json::parse(std::ifstream(NIBBLE_SOURCE_DIR "/tests/goldens/harmony.json"));
  return all;
}

const Harmony& harmony() {
  static const Harmony harmony(o200k());
  return harmony;
}

std::vector<FunctionTool> tools_of(const Json& json) {
  std::vector<FunctionTool> out;
  for (const Json& tool : json) {
    out.push_back({.name = tool.at("name"),
                   .description = tool.value("description", ""),
                   .parameters = tool.contains("parameters") ? tool["parameters"].dump() : ""});
  }
  return out;
}

std::vector<ToolNamespace> namespaces_of(const Json& json) {
  std::vector<ToolNamespace> out;
  for (const Json& ns : json) {
    out.push_back({.name = ns.at("name"),
                   .description = ns.value("description", ""),
                   .tools = tools_of(ns.at("tools"))});
  }
  return out;
}

ChatMessage message_of(const Json& json) {
  ChatMessage out{.role = *parse_role(json.at("role").get<std::string>()),
                  .content = json.at("content"),
                  .name = json.value("name", ""),
                  .reasoning = json.value("reasoning", ""),
                  .tool_calls = {},
                  .tool_call_id = json.value("tool_call_id", "")};
  for (const Json& call : json.value("tool_calls", Json::array())) {
    out.tool_calls.push_back(
        {.id = call.at("id"), .name = call.at("name"), .arguments = call.at("arguments")});
  }
  return out;
}

Chat chat_of(const Json& json) {
  Chat chat;
  for (const Json& message : json.at("messages")) chat.messages.push_back(message_of(message));
  chat.tools = tools_of(json.at("tools"));
  const Json& options = json.at("options");
  chat.options.effort = *parse_reasoning_effort(options.value("effort", "medium"));
  chat.options.current_date = options.value("current_date", "");
  chat.options.model_identity = options.value("model_identity", chat.options.model_identity);
  chat.options.knowledge_cutoff = options.value("knowledge_cutoff", chat.options.knowledge_cutoff);
  chat.options.builtin_tools = namespaces_of(options.value("builtin_tools", Json::array()));
  if (options.value("tool_choice", "") == "none") {
    chat.options.tool_choice.kind = ToolChoice::Kind::kNone;
  }
  return chat;
}

HarmonyHeader header_of(const Json& json) {
  return {.author = json.at("author"),
          .recipient = json.at("recipient"),
          .channel = json.at("channel"),
          .content_type = json.at("content_type")};
}

TEST(HarmonyGolden, Chats) {
  ASSERT_GE(goldens().at("chats").size(), 25u);
  for (const Json& golden : goldens().at("chats")) {
    SCOPED_TRACE(golden.at("name").get<std::string>());
    const Result<ChatPrompt> prompt = harmony().render(chat_of(golden.at("chat")));
    ASSERT_TRUE(prompt.ok()) << prompt.error();
    const auto expected = golden.at("ids").get<std::vector<int32_t>>();
    EXPECT_EQ(prompt.value().ids, expected)
        << o200k().decode(prompt.value().ids) << "\n---- expected\n"
        << o200k().decode(expected);
    EXPECT_FALSE(prompt.value().start.in_content);
  }
}

TEST(HarmonyGolden, Tools) {
  ASSERT_GE(goldens().at("tools").size(), 180u);
  for (const Json& golden : goldens().at("tools")) {
    SCOPED_TRACE(golden.at("name").get<std::string>());
    // The package sorts namespaces; the goldens are in that order.
    const Result<std::string> text = render_tools(namespaces_of(golden.at("namespaces")));
    ASSERT_TRUE(text.ok()) << text.error();
    EXPECT_EQ(text.value(), golden.at("text").get<std::string>());
  }
}

TEST(HarmonyGolden, Messages) {
  ASSERT_GE(goldens().at("messages").size(), 190u);
  for (const Json& golden : goldens().at("messages")) {
    const HarmonyMessage message{.header = header_of(golden.at("header")),
                                 .content = golden.at("content")};
    EXPECT_EQ(harmony().render({&message, 1}), golden.at("ids").get<std::vector<int32_t>>())
        << golden.at("header");
  }
}

struct Parsed {
  std::vector<HarmonyMessage> messages;
  int64_t malformed;
};

Parsed parse(const std::vector<int32_t>& ids) {
  HarmonyParser parser(harmony());
  std::vector<HarmonyEvent> events;
  for (const int32_t id : ids) parser.push(id, events);
  parser.finish(events);
  Parsed out{.messages = {}, .malformed = parser.counts().malformed};
  for (const HarmonyEvent& event : events) {
    EXPECT_NE(event.kind, HarmonyEvent::Kind::kStray);
    if (event.kind == HarmonyEvent::Kind::kBegin) out.messages.push_back({.header = event.header});
    if (event.kind == HarmonyEvent::Kind::kText) out.messages.back().content += event.text;
  }
  return out;
}

TEST(HarmonyGolden, Parses) {
  ASSERT_GE(goldens().at("parses").size(), 150u);
  for (const Json& golden : goldens().at("parses")) {
    SCOPED_TRACE(golden.at("name").get<std::string>());
    const auto ids = golden.at("ids").get<std::vector<int32_t>>();
    const Parsed parsed = parse(ids);
    const Json& expected = golden.at("messages");
    ASSERT_EQ(parsed.messages.size(), expected.size()) << o200k().decode(ids);
    for (size_t i = 0; i < expected.size(); ++i) {
      const HarmonyHeader& header = parsed.messages[i].header;
      EXPECT_EQ(header.author, expected[i].at("author").get<std::string>());
      EXPECT_EQ(header.channel, expected[i].at("channel").get<std::string>());
      EXPECT_EQ(header.recipient, expected[i].at("recipient").get<std::string>());
      EXPECT_EQ(header.content_type, expected[i].at("content_type").get<std::string>());
      EXPECT_EQ(parsed.messages[i].content, expected[i].at("content").get<std::string>());
    }
  }
}

// Rendering what was parsed gives the ids of the prompt back: nothing is lost on either way.
TEST(HarmonyGolden, ParseThenRender) {
  for (const Json& golden : goldens().at("chats")) {
    auto ids = golden.at("ids").get<std::vector<int32_t>>();
    ids.resize(ids.size() - 2);  // "<|start|>assistant"
    EXPECT_EQ(harmony().render(parse(ids).messages), ids) << golden.at("name");
  }
}

}  // namespace
}  // namespace nibble
