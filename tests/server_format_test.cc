// Answers of a given form: response_format, structured_outputs, tools; what cannot be kept to is
// refused.
#include "server_testing.h"

namespace nibble::server {
namespace {

using ::testing::HasSubstr;

const json kCitySchema = {{"type", "object"},
                          {"properties",
                           {{"city", {{"type", "string"}, {"maxLength", 12}}},
                            {"sunny", {{"type", "boolean"}}},
                            {"degrees", {{"type", "integer"}, {"minimum", -40}, {"maximum", 50}}}}},
                          {"required", {"city", "sunny", "degrees"}},
                          {"additionalProperties", false}};

json schema_format(const json& schema) {
  return {{"type", "json_schema"}, {"json_schema", {{"name", "weather"}, {"schema", schema}}}};
}

json tool(const std::string& name, const json& parameters) {
  return {{"type", "function"}, {"function", {{"name", name}, {"parameters", parameters}}}};
}

std::string content_of(const json& reply) {
  return reply["choices"][0]["message"]["content"].get<std::string>();
}

void expect_weather(const std::string& text) {
  const json weather = json::parse(text, nullptr, false);
  ASSERT_TRUE(weather.is_object()) << text;
  EXPECT_EQ(weather.size(), 3u);
  EXPECT_LE(weather["city"].get<std::string>().size(), 48u);  // 12 characters
  EXPECT_TRUE(weather["sunny"].is_boolean());
  EXPECT_GE(weather["degrees"].get<int>(), -40);
  EXPECT_LE(weather["degrees"].get<int>(), 50);
}

TEST_F(ServerTest, AnswersInTheSchemaAtAnyTemperature) {
  serve();
  for (int seed = 0; seed < 8; ++seed) {
    const json reply = chat(with(kParis, {{"response_format", schema_format(kCitySchema)},
                                          {"temperature", seed == 0 ? 0.0 : 1.5},
                                          {"seed", seed},
                                          {"max_tokens", 600}}));
    ASSERT_TRUE(reply.contains("choices")) << reply.dump();
    ASSERT_EQ(reply["choices"][0]["finish_reason"], "stop") << reply.dump();
    expect_weather(content_of(reply));
  }
}

TEST_F(ServerTest, StreamsTheSchemaAndItsStops) {
  serve();
  std::string content;
  for (const json& event : stream(
           "/v1/chat/completions",
           with(kParis, {{"response_format", schema_format(kCitySchema)}, {"max_tokens", 600}}))) {
    content += event["choices"][0]["delta"].value("content", "");
  }
  expect_weather(content);
}

TEST_F(ServerTest, AnswersWithAJsonObject) {
  serve();
  const json reply =
      chat(with(kParis, {{"response_format", {{"type", "json_object"}}}, {"max_tokens", 700}}));
  if (reply["choices"][0]["finish_reason"] == "stop") {
    EXPECT_TRUE(json::parse(content_of(reply)).is_object());
  } else {  // a small model may go on until the limit: still the start of an object
    EXPECT_THAT(content_of(reply), ::testing::StartsWith("{"));
  }
  const json text = chat(with(kParis, {{"response_format", {{"type", "text"}}}}));
  EXPECT_EQ(content_of(text), "The capital of France is Paris.");
}

TEST_F(ServerTest, AnswersWithChoicesAndPatterns) {
  serve();
  const json choice =
      chat(with(kParis, {{"structured_outputs", {{"choice", {"London", "Paris"}}}}}));
  EXPECT_EQ(content_of(choice), "Paris");
  const json guided = chat(with(kParis, {{"guided_choice", {"London", "Berlin"}}}));
  EXPECT_THAT(content_of(guided), ::testing::AnyOf("London", "Berlin"));
  const json regex =
      chat(with(kParis, {{"structured_outputs", {{"regex", "[A-Z][a-z]{2,8}-[0-9]{4}"}}}}));
  EXPECT_THAT(content_of(regex), ::testing::MatchesRegex("[A-Z][a-z]+-[0-9][0-9][0-9][0-9]"));
  const json grammar =
      chat(with(kParis, {{"guided_grammar", "root ::= \"It is \" (\"Rome\" | \"Paris\") \".\""}}));
  EXPECT_THAT(content_of(grammar), ::testing::AnyOf("It is Paris.", "It is Rome."));
}

TEST_F(ServerTest, CompletesInAGivenForm) {
  serve();
  const json reply = completion({{"prompt", "The capital of France is"},
                                 {"structured_outputs", {{"choice", {" Paris", " London"}}}}});
  EXPECT_EQ(reply["choices"][0]["text"], " Paris");
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "stop");
  const json two = completion(
      {{"prompt", {"a", "b"}}, {"n", 2}, {"temperature", 1}, {"guided_regex", "[0-9]{3}"}});
  ASSERT_EQ(two["choices"].size(), 4u);
  for (const json& choice : two["choices"]) {
    EXPECT_THAT(choice["text"].get<std::string>(), ::testing::MatchesRegex("[0-9][0-9][0-9]"));
  }
}

TEST_F(ServerTest, HoldsToolArgumentsToTheirSchema) {
  serve();
  const json tools = {tool("get_weather", kCitySchema),
                      tool("set_alarm", {{"type", "object"},
                                         {"properties", {{"hour", {{"enum", {6, 7, 8}}}}}},
                                         {"required", {"hour"}},
                                         {"additionalProperties", false}})};
  for (int seed = 0; seed < 6; ++seed) {
    const json reply = chat(with(kParis, {{"tools", tools},
                                          {"tool_choice", "required"},
                                          {"parallel_tool_calls", false},
                                          {"temperature", 1.5},
                                          {"seed", seed},
                                          {"max_tokens", 800}}));
    const json& choice = reply["choices"][0];
    if (choice["finish_reason"] == "length") continue;  // it has thought for too long
    ASSERT_EQ(choice["finish_reason"], "tool_calls");
    const json& function = choice["message"]["tool_calls"][0]["function"];
    const std::string arguments = function["arguments"];
    if (function["name"] == "get_weather") {
      expect_weather(arguments);
    } else {
      EXPECT_EQ(function["name"], "set_alarm");
      const json hour = json::parse(arguments)["hour"];
      EXPECT_TRUE(hour == 6 || hour == 7 || hour == 8) << arguments;
    }
  }
  const json named = chat(
      with(kParis, {{"tools", tools},
                    {"tool_choice", {{"type", "function"}, {"function", {{"name", "set_alarm"}}}}},
                    {"max_tokens", 200}}));
  const json& call = named["choices"][0]["message"]["tool_calls"][0];
  EXPECT_EQ(call["function"]["name"], "set_alarm");
  EXPECT_TRUE(json::parse(call["function"]["arguments"].get<std::string>()).contains("hour"));
}

TEST_F(ServerTest, ForcesAnAnswerOrACall) {
  serve();
  // A schema, tools and reasoning together: one of the two comes, and it is valid.
  for (int seed = 0; seed < 4; ++seed) {
    const json reply = chat(with(kParis, {{"response_format", schema_format(kCitySchema)},
                                          {"tools", {tool("get_weather", kCitySchema)}},
                                          {"temperature", 1.2},
                                          {"seed", seed},
                                          {"max_tokens", 900}}));
    const json& choice = reply["choices"][0];
    if (choice["finish_reason"] == "length") continue;
    const bool calls = choice["finish_reason"] == "tool_calls";
    expect_weather(calls ? choice["message"]["tool_calls"][0]["function"]["arguments"]
                         : choice["message"]["content"]);
  }
}

TEST_F(ServerTest, RefusesFormsThatCannotBeKeptTo) {
  serve();
  const auto refused = [&](const json& fields, const std::string& param) {
    const Answer answer = post("/v1/chat/completions", with(kParis, fields));
    EXPECT_EQ(answer.status, 400) << fields.dump() << answer.body;
    EXPECT_EQ(answer.parsed()["error"]["param"], param) << answer.body;
  };
  refused({{"structured_outputs", {{"regex", "foo**"}}}}, "structured_outputs.regex");
  refused({{"structured_outputs", {{"regex", "a(?=b)"}}}}, "structured_outputs.regex");
  refused({{"guided_regex", std::string(1 << 20, 'a')}}, "guided_regex");
  refused({{"guided_grammar", "root ::= nothing"}}, "guided_grammar");
  refused({{"guided_choice", json::array()}}, "guided_choice");
  refused({{"structured_outputs", {{"json", {{"type", "nothing"}}}}}}, "structured_outputs.json");
  refused({{"structured_outputs", {{"structural_tag", "x"}}}}, "structured_outputs.structural_tag");
  refused({{"response_format", {{"type", "xml"}}}}, "response_format.type");
  refused({{"response_format", {{"type", "json_schema"}}}}, "response_format.json_schema");
  refused({{"response_format", schema_format({{"$ref", "https://example.com/x.json"}})}},
          "response_format.json_schema.schema");
  refused({{"response_format", schema_format({{"not", {{"type", "string"}}}})}},
          "response_format.json_schema.schema");
  refused({{"response_format", {{"type", "json_object"}}}, {"guided_regex", "a"}}, "guided_regex");
  json strict = tool("f", {{"type", "object"}, {"not", {{"type", "string"}}}});
  strict["function"]["strict"] = true;
  refused({{"tools", {strict}}}, "tools[0]");
  strict["function"]["strict"] = false;
  EXPECT_EQ(
      post("/v1/chat/completions", with(kParis, {{"tools", {strict}}, {"max_tokens", 5}})).status,
      200);
}

TEST_F(ServerTest, GivesUpOnGrammarsThatTakeTooLong) {
  options_.grammar_timeout = std::chrono::milliseconds(1);
  serve();
  const Answer answer = post(
      "/v1/chat/completions",
      with(kParis, {{"structured_outputs", {{"regex", ".*a.{20}.*b.{21}"}}}, {"max_tokens", 5}}));
  // A thread that was busy elsewhere for that millisecond has not even begun.
  EXPECT_THAT(answer.status, ::testing::AnyOf(400, 503)) << answer.body;
  EXPECT_THAT(answer.error(), HasSubstr("compil"));
  EXPECT_EQ(chat(kParis)["choices"][0]["finish_reason"], "stop");
}

}  // namespace
}  // namespace nibble::server
