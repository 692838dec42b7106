// Anthropic's /v1/messages and OpenAI's /v1/responses, as Claude Code and Codex CLI use them.
#include "server_testing.h"

namespace nibble::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const json kWeatherSchema = {{"type", "object"},
                             {"properties", {{"city", {{"type", "string"}}}}},
                             {"required", {"city"}},
                             {"additionalProperties", false}};

struct Event {
  std::string name;
  json data;
};

class MessagesTest : public ServerTest {
 protected:
  json ask_for(const std::string& path, json body) {
    body["temperature"] = 0;
    const Answer answer = post(path, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.parsed();
  }

  // The named events of a stream.
  std::vector<Event> events(const std::string& path, json body) {
    body["stream"] = true;
    body["temperature"] = 0;
    const Answer answer = post(path, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    std::vector<Event> list;
    std::istringstream lines(answer.body);
    for (std::string line; std::getline(lines, line);) {
      if (line.empty()) continue;
      EXPECT_THAT(line, StartsWith("event: "));
      Event event{.name = line.substr(7), .data = {}};
      EXPECT_TRUE(static_cast<bool>(std::getline(lines, line)));
      EXPECT_THAT(line, StartsWith("data: {"));
      event.data = json::parse(line.substr(6));
      EXPECT_EQ(event.data["type"], event.name);
      list.push_back(std::move(event));
    }
    return list;
  }
};

std::string names(const std::vector<Event>& events) {
  std::string text;
  for (const Event& event : events) {
    if (text.ends_with(event.name + " ")) continue;  // one of several deltas
    text += event.name + " ";
  }
  return text;
}

json message_body(json fields = json::object()) {
  return with({{"model", "tiny"},
               {"max_tokens", 300},
               {"messages", {{{"role", "user"}, {"content", "What is the capital of France?"}}}}},
              fields);
}

TEST_F(MessagesTest, AnswersAMessage) {
  serve();
  const json reply = ask_for("/v1/messages", message_body());
  EXPECT_EQ(reply["type"], "message");
  EXPECT_EQ(reply["role"], "assistant");
  EXPECT_EQ(reply["content"],
            json::array({{{"type", "text"}, {"text", "The capital of France is Paris."}}}));
  EXPECT_EQ(reply["stop_reason"], "end_turn");
  EXPECT_GT(reply["usage"]["output_tokens"], 5);
  const json thinking = ask_for(
      "/v1/messages", message_body({{"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}}}));
  EXPECT_EQ(thinking["content"][0]["type"], "thinking");
  EXPECT_THAT(thinking["content"][0]["thinking"].get<std::string>(), HasSubstr("Paris"));
  EXPECT_EQ(thinking["content"][1]["text"], "The capital of France is Paris.");
  const json cut = ask_for("/v1/messages", message_body({{"max_tokens", 2}}));
  EXPECT_EQ(cut["stop_reason"], "max_tokens");
  const json stopped = ask_for("/v1/messages", message_body({{"stop_sequences", {"zzz", " is"}}}));
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], " is");
  EXPECT_EQ(stopped["content"][0]["text"], "The capital of France");
}

TEST_F(MessagesTest, StreamsAMessageInAnthropicsOrder) {
  serve();
  const auto list = events(
      "/v1/messages", message_body({{"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}}}));
  EXPECT_EQ(names(list),
            "message_start ping content_block_start content_block_delta content_block_stop "
            "content_block_start content_block_delta content_block_stop message_delta "
            "message_stop ");
  EXPECT_GT(list.front().data["message"]["usage"]["input_tokens"], 10);
  std::string thinking, text, signature;
  for (const Event& event : list) {
    if (event.name != "content_block_delta") continue;
    const json& delta = event.data["delta"];
    EXPECT_EQ(event.data["index"], delta["type"] == "text_delta" ? 1 : 0);
    thinking += delta.value("thinking", "");
    signature += delta.value("signature", "");
    text += delta.value("text", "");
  }
  EXPECT_THAT(thinking, HasSubstr("Paris"));
  EXPECT_FALSE(signature.empty());
  EXPECT_EQ(text, "The capital of France is Paris.");
  const json& end = list[list.size() - 2].data;
  EXPECT_EQ(end["delta"]["stop_reason"], "end_turn");
  EXPECT_GT(end["usage"]["output_tokens"], 5);
}

// A turn as Claude Code makes it: system blocks with its counter, tools, results, unknown fields.
TEST_F(MessagesTest, TakesATurnOfClaudeCode) {
  serve();
  const auto body = [&](const std::string& counter) {
    return json{{"model", "tiny"},
                {"max_tokens", 400},
                {"metadata", {{"user_id", "user_1"}}},
                {"system",
                 {{{"type", "text"},
                   {"text", "x-anthropic-billing-header: cc_version=2.1; cch=" + counter}},
                  {{"type", "text"},
                   {"text", "You are a helpful assistant."},
                   {"cache_control", {{"type", "ephemeral"}}}}}},
                {"tools",
                 {{{"name", "get_weather"},
                   {"description", "Get the weather of a city."},
                   {"input_schema", kWeatherSchema},
                   {"cache_control", {{"type", "ephemeral"}}}},
                  {{"type", "web_search_20250305"}, {"name", "web_search"}, {"max_uses", 5}}}},
                {"messages",
                 {{{"role", "user"},
                   {"content", {{{"type", "text"}, {"text", "What is the weather in Paris?"}}}}}}}};
  };
  const json first = body("1f3a");
  const json count = ask_for("/v1/messages/count_tokens", first);
  EXPECT_EQ(ask_for("/v1/messages/count_tokens", body("00000000000000000000")), count);
  const auto list = events("/v1/messages", first);
  std::string name, id, input;
  for (const Event& event : list) {
    if (event.name == "content_block_start" && event.data["content_block"]["type"] == "tool_use") {
      name = event.data["content_block"]["name"];
      id = event.data["content_block"]["id"];
    }
    if (event.name == "content_block_delta") input += event.data["delta"].value("partial_json", "");
  }
  ASSERT_EQ(name, "get_weather");
  EXPECT_EQ(json::parse(input), json({{"city", "Paris"}}));
  EXPECT_EQ(list[list.size() - 2].data["delta"]["stop_reason"], "tool_use");
  json second = body("9c01");
  second["messages"].push_back(
      {{"role", "assistant"},
       {"content",
        {{{"type", "thinking"}, {"thinking", "I need the weather."}, {"signature", "x"}},
         {{"type", "tool_use"}, {"id", id}, {"name", name}, {"input", json::parse(input)}}}}});
  second["messages"].push_back(
      {{"role", "user"},
       {"content",
        {{{"type", "tool_result"},
          {"tool_use_id", id},
          {"content", {{{"type", "text"}, {"text", "{\"temperature\": 21}"}}}}}}}});
  const json reply = ask_for("/v1/messages", second);
  EXPECT_EQ(reply["stop_reason"], "end_turn");
  EXPECT_THAT(reply["content"][0]["text"].get<std::string>(), HasSubstr("21"));
}

TEST_F(MessagesTest, ForcesToolsAsAnthropicAsksForThem) {
  serve();
  const json tools = {{{"name", "get_weather"}, {"input_schema", kWeatherSchema}}};
  for (const json& choice :
       {json{{"type", "any"}}, json{{"type", "tool"}, {"name", "get_weather"}}}) {
    const json reply =
        ask_for("/v1/messages",
                message_body({{"tools", tools}, {"tool_choice", choice}, {"max_tokens", 900}}));
    const json& block = reply["content"].back();
    ASSERT_EQ(block["type"], "tool_use") << reply.dump();
    EXPECT_TRUE(block["input"].contains("city"));
    EXPECT_EQ(reply["stop_reason"], "tool_use");
  }
}

// Claude Code's tools wait to be found: what nothing has named can neither be called nor be forced.
TEST_F(MessagesTest, CallsDeferredToolsOnceTheyWereFound) {
  serve();
  const json search = {{"name", "search"}, {"input_schema", {{"type", "object"}}}};
  const json weather = {
      {"name", "get_weather"}, {"defer_loading", true}, {"input_schema", kWeatherSchema}};
  json messages = {{{"role", "user"}, {"content", "What is the weather in Paris?"}}};
  const auto ask_with = [&](const json& choice) {
    return post("/v1/messages", message_body({{"tools", {search, weather}},
                                              {"tool_choice", choice},
                                              {"messages", messages},
                                              {"max_tokens", 900}}));
  };
  EXPECT_EQ(ask_with({{"type", "tool"}, {"name", "get_weather"}}).status, 400);
  EXPECT_EQ(ask_with({{"type", "any"}}).parsed()["content"].back()["name"], "search");
  messages.push_back(
      {{"role", "assistant"},
       {"content",
        {{{"type", "tool_use"}, {"id", "t1"}, {"name", "search"}, {"input", json::object()}}}}});
  messages.push_back(
      {{"role", "user"},
       {"content",
        {{{"type", "tool_result"},
          {"tool_use_id", "t1"},
          {"content", {{{"type", "tool_reference"}, {"tool_name", "get_weather"}}}}}}}});
  for (int i = 0; i < 4; ++i) {  // at Anthropic's default temperature, 1
    const json reply = ask_with({{"type", "tool"}, {"name", "get_weather"}}).parsed();
    const json& call = reply["content"].back();
    ASSERT_EQ(call["type"], "tool_use") << reply.dump();
    EXPECT_EQ(call["name"], "get_weather");
    EXPECT_TRUE(call["input"].contains("city"));
  }
}

TEST_F(MessagesTest, SaysWhatIsWrongInAnthropicsShape) {
  options_.access.api_keys = {"secret"};
  serve();
  const Answer stranger = post("/v1/messages", message_body());
  EXPECT_EQ(stranger.status, 401);
  EXPECT_EQ(stranger.parsed()["type"], "error");
  EXPECT_EQ(stranger.parsed()["error"]["type"], "authentication_error");
  const auto refused = [&](const json& fields, int status) {
    const Answer answer =
        ask("POST", "/v1/messages", message_body(fields).dump(), "x-api-key: secret\r\n");
    EXPECT_EQ(answer.status, status) << answer.body;
    EXPECT_EQ(answer.parsed()["type"], "error");
    return answer.parsed()["error"]["type"].get<std::string>();
  };
  EXPECT_EQ(refused({{"max_tokens", nullptr}}, 400), "invalid_request_error");
  EXPECT_EQ(refused({{"max_tokens", 0}}, 400), "invalid_request_error");
  EXPECT_EQ(refused({{"model", "claude"}}, 404), "not_found_error");
  EXPECT_EQ(refused({{"messages", json::array()}}, 400), "invalid_request_error");
  EXPECT_EQ(refused({{"messages", {{{"role", "user"}, {"content", {{{"type", "odd"}}}}}}}}, 400),
            "invalid_request_error");
  EXPECT_EQ(refused({{"tool_choice", {{"type", "any"}}}}, 400), "invalid_request_error");
  EXPECT_EQ(refused({{"thinking", {{"type", "much"}}}}, 400), "invalid_request_error");
  EXPECT_EQ(refused({{"stop_sequences", {""}}}, 400), "invalid_request_error");
}

TEST_F(MessagesTest, AnswersAResponse) {
  serve();
  const json reply = ask_for("/v1/responses", {{"model", "tiny"},
                                               {"input", "What is the capital of France?"},
                                               {"instructions", "You are a helpful assistant."}});
  EXPECT_EQ(reply["object"], "response");
  EXPECT_EQ(reply["status"], "completed");
  ASSERT_EQ(reply["output"].size(), 2u);
  EXPECT_EQ(reply["output"][0]["type"], "reasoning");
  EXPECT_EQ(reply["output"][1]["type"], "message");
  EXPECT_THAT(reply["output"][1]["content"][0]["text"].get<std::string>(), HasSubstr("Paris"));
  EXPECT_GT(reply["usage"]["output_tokens_details"]["reasoning_tokens"], 3);
  const json cut = ask_for("/v1/responses", {{"input", "Hello"}, {"max_output_tokens", 2}});
  EXPECT_EQ(cut["status"], "incomplete");
  EXPECT_EQ(cut["incomplete_details"]["reason"], "max_output_tokens");
  const json schema = ask_for(
      "/v1/responses",
      {{"input", "What is the capital of France?"},
       {"max_output_tokens", 600},
       {"text",
        {{"format",
          {{"type", "json_schema"},
           {"name", "w"},
           {"strict", true},
           {"schema",
            {{"type", "object"},
             {"properties", {{"n", {{"type", "integer"}, {"maximum", 99}, {"minimum", 0}}}}},
             {"required", {"n"}},
             {"additionalProperties", false}}}}}}}});
  const json answer = json::parse(schema["output"].back()["content"][0]["text"].get<std::string>());
  EXPECT_TRUE(answer["n"].is_number_integer());
}

// The fields and items that Codex CLI sends: the whole history, and tools that are no functions.
TEST_F(MessagesTest, TakesATurnOfCodex) {
  serve();
  json body = {
      {"model", "tiny"},
      {"instructions", "You are a helpful assistant."},
      {"input",
       {{{"type", "message"},
         {"role", "developer"},
         {"content", {{{"type", "input_text"}, {"text", "Answer briefly."}}}}},
        {{"type", "message"},
         {"role", "user"},
         {"content", {{{"type", "input_text"}, {"text", "What is the weather in Paris?"}}}}}}},
      {"tools",
       {{{"type", "function"},
         {"name", "get_weather"},
         {"description", "Get the weather of a city."},
         {"strict", false},
         {"parameters", kWeatherSchema}},
        {{"type", "local_shell"}},
        {{"type", "custom"}, {"name", "apply_patch"}, {"format", {{"type", "grammar"}}}},
        {{"type", "web_search"}}}},
      {"tool_choice", "required"},
      {"parallel_tool_calls", false},
      {"reasoning", {{"effort", "medium"}, {"summary", "auto"}}},
      {"store", false},
      {"include", {"reasoning.encrypted_content"}},
      {"prompt_cache_key", "0199"},
      {"client_metadata", {{"a", "b"}}}};
  const auto list = events("/v1/responses", body);
  EXPECT_EQ(list.front().name, "response.created");
  EXPECT_EQ(list[1].name, "response.in_progress");
  ASSERT_EQ(list.back().name, "response.completed");
  for (size_t i = 0; i < list.size(); ++i) EXPECT_EQ(list[i].data["sequence_number"], i);
  const json& output = list.back().data["response"]["output"];
  const json& call = output.back();
  ASSERT_EQ(call["type"], "function_call");
  EXPECT_EQ(call["name"], "get_weather");
  std::string arguments;
  json added, done;
  for (const Event& event : list) {
    if (event.name == "response.function_call_arguments.delta") {
      arguments += event.data["delta"].get<std::string>();
    }
    if (event.name == "response.output_item.added") added = event.data["item"];
    if (event.name == "response.output_item.done") done = event.data["item"];
  }
  EXPECT_EQ(call["arguments"], arguments);
  EXPECT_EQ(added["id"], done["id"]);
  EXPECT_EQ(done, call);
  // The next turn has all of it again.
  for (const json& item : output) body["input"].push_back(item);
  body["input"].push_back({{"type", "function_call_output"},
                           {"call_id", call["call_id"]},
                           {"output", "{\"temperature\": 21}"}});
  body["tool_choice"] = "auto";
  const json reply = ask_for("/v1/responses", body);
  ASSERT_EQ(reply["output"].back()["type"], "message") << reply["output"].dump();
  EXPECT_THAT(reply["output"].back()["content"][0]["text"].get<std::string>(), HasSubstr("21"));
  // Items of tools that nobody here runs are taken along.
  body["input"].push_back({{"type", "local_shell_call"},
                           {"id", "ls_1"},
                           {"call_id", "c9"},
                           {"status", "completed"},
                           {"action", {{"type", "exec"}, {"command", {"ls"}}}}});
  body["input"].push_back(
      {{"type", "local_shell_call_output"}, {"call_id", "c9"}, {"output", "a.txt"}});
  body["input"].push_back({{"type", "web_search_call"}, {"id", "ws_1"}, {"status", "completed"}});
  EXPECT_EQ(post("/v1/responses", body).status, 200);
}

TEST_F(MessagesTest, RefusesResponsesThatItCannotGive) {
  serve();
  const auto param = [&](const json& fields) {
    const Answer answer = post("/v1/responses", with({{"input", "Hi"}, {"model", "tiny"}}, fields));
    EXPECT_EQ(answer.status, 400) << answer.body;
    return answer.parsed()["error"]["param"].get<std::string>();
  };
  EXPECT_EQ(param({{"previous_response_id", "resp_1"}}), "previous_response_id");
  EXPECT_EQ(param({{"conversation", "conv_1"}}), "conversation");
  EXPECT_EQ(param({{"prompt", {{"id", "pmpt_1"}}}}), "prompt");
  EXPECT_EQ(param({{"input", json::array()}}), "input");
  EXPECT_EQ(param({{"input", {{{"type", "odd"}}}}}), "input[0].type");
  EXPECT_EQ(param({{"background", true}}), "background");
  EXPECT_EQ(param({{"tool_choice", "required"}}), "tool_choice");
  EXPECT_EQ(param({{"text", {{"format", {{"type", "xml"}}}}}}), "text.format.type");
  EXPECT_EQ(param({{"reasoning", {{"effort", "huge"}}}}), "reasoning.effort");
}

}  // namespace
}  // namespace nibble::server
