#include "server/anthropic_types.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/json_fields.h"

namespace nibble::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Json block(const char* text) { return {{"type", "text"}, {"text", text}}; }

Json image() {
  return {{"type", "image"},
          {"source", {{"type", "base64"}, {"media_type", "image/png"}, {"data", "iVBORw0KGgo="}}}};
}

Json document(Json source) {
  return {{"type", "document"}, {"title", "notes.txt"}, {"source", std::move(source)}};
}

Json tool(const char* name, bool deferred = false) {
  Json tool = {{"name", name},
               {"input_schema", {{"type", "object"}, {"properties", Json::object()}}}};
  if (deferred) tool["defer_loading"] = true;
  return tool;
}

Json reference(const char* name) { return {{"type", "tool_reference"}, {"tool_name", name}}; }

Json result(Json content) {
  return {{"type", "tool_result"}, {"tool_use_id", "t1"}, {"content", std::move(content)}};
}

// The turns of a search: the tool's call, and what came of it.
Json after_a_call(Json content) {
  return {{{"role", "user"}, {"content", "Hi"}},
          {{"role", "assistant"},
           {"content",
            {{{"type", "tool_use"}, {"id", "t1"}, {"name", "search"}, {"input", Json::object()}}}}},
          {{"role", "user"}, {"content", std::move(content)}}};
}

class MessagesRequestTest : public ::testing::Test {
 protected:
  Chat parse(Json messages, Json tools = Json::array()) {
    const Json body = {
        {"max_tokens", 9}, {"tools", std::move(tools)}, {"messages", std::move(messages)}};
    ChatRequest request;
    error_ = parse_messages_request(body.dump(), {}, rules_, request);
    return request.chat;
  }

  static std::string names(const Chat& chat) {
    std::string names;
    for (const FunctionTool& tool : chat.tools) names += tool.name + " ";
    return names;
  }

  MessagesRules rules_;
  std::optional<ApiError> error_;
};

TEST_F(MessagesRequestTest, ShowsDeferredToolsOnceTheyAreNamed) {
  const Json tools = {tool("search"), tool("fetch", true), tool("edit", true), tool("hole", true)};
  EXPECT_EQ(names(parse({{{"role", "user"}, {"content", "Hi"}}}, tools)), "search ");
  // As Claude Code's search answers; twice, and with a name that is none.
  const Json found = result({reference("edit"), reference("edit"), reference("nothing")});
  const Chat chat = parse(after_a_call({found}), tools);
  EXPECT_FALSE(error_);
  EXPECT_EQ(names(chat), "search edit ");
  EXPECT_EQ(chat.messages.back().content,
            "[edit can be called from now on]\n[edit can be called from now on]\n"
            "[there is no tool nothing]");
  // As Anthropic's own search answers, which stands in the assistant's turn.
  const Json searched = {
      {"type", "tool_search_tool_result"},
      {"tool_use_id", "s1"},
      {"content",
       {{"type", "tool_search_tool_search_result"}, {"tool_references", {reference("fetch")}}}}};
  EXPECT_EQ(names(parse({{{"role", "user"}, {"content", "Hi"}},
                         {{"role", "assistant"}, {"content", {searched, block("Found.")}}},
                         {{"role", "user"}, {"content", "Go on."}}},
                        tools)),
            "search fetch ");
}

TEST_F(MessagesRequestTest, ChangesToolsInTheMiddleOfAConversation) {
  const auto system = [](Json change) {
    return Json{{"role", "system"}, {"content", {std::move(change)}}};
  };
  const auto named = [](const char* type, const char* name) {
    return Json{{"type", type}, {"tool", {{"type", "tool_reference"}, {"name", name}}}};
  };
  const Json defined = {{"type", "tool_addition"},
                        {"tool", {{"type", "tool_definition"}, {"definition", tool("new")}}}};
  const Json user = {{"role", "user"}, {"content", "Hi"}};
  const Json tools = {tool("a"), tool("b"), tool("c", true)};
  const Chat chat = parse({user, system(named("tool_removal", "a")),
                           system(named("tool_addition", "c")), system(defined)},
                          tools);
  EXPECT_FALSE(error_) << error_->message;
  EXPECT_EQ(names(chat), "b c new ");
  EXPECT_EQ(names(parse({user, system(defined), system(named("tool_removal", "new"))}, tools)),
            "a b ");
  Json bad = defined;
  bad["tool"]["definition"]["name"] = "no name\n";
  parse({user, system(bad)}, tools);
  ASSERT_TRUE(error_);
  EXPECT_EQ(error_->param, "tool.definition.name");
}

// What the model cannot take is said in words: a 400 would come again with every later turn, since
// clients send all of them.
TEST_F(MessagesRequestTest, SaysWhatWasLeftOut) {
  const Json pdf = {{"type", "base64"}, {"media_type", "application/pdf"}, {"data", "JVBERi0="}};
  const Chat chat = parse(after_a_call(
      {result({block("Read it:"), image(), document(pdf)}), image(), block("What is it?")}));
  ASSERT_FALSE(error_) << error_->message;
  ASSERT_EQ(chat.messages.size(), 4u);
  EXPECT_EQ(chat.messages[2].content,
            "Read it:\n[left out: image of type image/png, since this model takes text only]\n"
            "notes.txt\n[left out: document of type application/pdf, since this model takes text "
            "only]");
  EXPECT_THAT(chat.messages[3].content, HasSubstr("image/png"));
  EXPECT_THAT(chat.messages[3].content, HasSubstr("\nWhat is it?"));
  for (const ChatMessage& message : chat.messages) {
    EXPECT_THAT(message.content, Not(HasSubstr("iVBOR")));
    EXPECT_THAT(message.content, Not(HasSubstr("JVBER")));
  }
}

TEST_F(MessagesRequestTest, TakesTheTextOfBlocksThatHaveIt) {
  const Json plain = {{"type", "text"}, {"media_type", "text/plain"}, {"data", "One.\nTwo."}};
  const Json parts = {{"type", "content"}, {"content", {block("A."), block("B.")}}};
  const Json hit = {{"type", "search_result"},
                    {"source", "https://example.org/a"},
                    {"title", "A page"},
                    {"content", {block("Words.")}}};
  const Chat chat = parse(after_a_call({result({document(plain), document(parts), hit})}));
  ASSERT_FALSE(error_) << error_->message;
  EXPECT_EQ(chat.messages.back().content,
            "notes.txt\nOne.\nTwo.\nnotes.txt\nA.\nB.\nhttps://example.org/a\nA page\nWords.");
}

// A conversation that was begun with Anthropic's own servers.
TEST_F(MessagesRequestTest, TakesWhatServersRan) {
  const Json use = {{"type", "server_tool_use"},
                    {"id", "s1"},
                    {"name", "web_search"},
                    {"input", {{"query", "nibble"}}}};
  const Json found = {{"type", "web_search_tool_result"},
                      {"tool_use_id", "s1"},
                      {"content",
                       {{{"type", "web_search_result"},
                         {"title", "Nibble"},
                         {"url", "https://example.org"},
                         {"encrypted_content", "EqgfCioIARgB"}}}}};
  const Json failed = {
      {"type", "code_execution_tool_result"},
      {"tool_use_id", "s2"},
      {"content", {{"type", "code_execution_tool_result_error"}, {"error_code", "unavailable"}}}};
  const Json empty = {{"type", "advisor_tool_result"}, {"tool_use_id", "s3"}};
  const Json summary = {{"type", "compaction"}, {"content", "So far."}};
  const Chat chat = parse({{{"role", "user"}, {"content", {result({use})}}},
                           {{"role", "assistant"},
                            {"content", {summary, use, found, failed, empty, block("Found it.")}}},
                           {{"role", "user"}, {"content", "Thanks"}}});
  ASSERT_FALSE(error_) << error_->message;
  EXPECT_EQ(chat.messages[0].content, "[the server ran web_search with {\"query\":\"nibble\"}]");
  EXPECT_EQ(chat.messages[1].content,
            "So far.\n[the server ran web_search with {\"query\":\"nibble\"}]\nNibble\n"
            "https://example.org\nunavailable\n"
            "[left out: advisor_tool_result, since this model takes text only]\nFound it.");
}

TEST_F(MessagesRequestTest, RefusesTypesThatTheApiDoesNotHave) {
  for (const Json& odd : {Json{{"type", "txt"}, {"text", "a"}}, Json{{"text", "a"}}}) {
    parse(after_a_call({result({odd})}));
    ASSERT_TRUE(error_);
    EXPECT_EQ(error_->param, "messages[2].content[0].content[0].type");
    parse({{{"role", "user"}, {"content", {odd}}}});
    ASSERT_TRUE(error_);
    EXPECT_EQ(error_->param, "messages[0].content[0].type");
  }
}

// The user's own are an error where the model as published sees them; what a tool brought is in
// every later turn, too, and stays words.
TEST_F(MessagesRequestTest, ImagesToTheTextPartOfAModel) {
  rules_.refuses_images = true;
  const Chat chat = parse(after_a_call({result({block("Read it:"), image()})}));
  EXPECT_FALSE(error_);
  EXPECT_THAT(chat.messages.back().content, HasSubstr("[left out: image of type image/png"));
  parse({{{"role", "user"}, {"content", {block("What is it?"), image()}}}});
  ASSERT_TRUE(error_);
  EXPECT_EQ(error_->param, "messages[0].content[1].type");
  EXPECT_THAT(error_->message, HasSubstr("image: nibble runs the text part of this model"));
}

}  // namespace
}  // namespace nibble::server
