#include "server/openai_types.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace nibble::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A chat request of one message with more fields.
std::string chat_with(const std::string& fields) {
  return R"({"messages":[{"role":"user","content":"hi"}])" + (fields.empty() ? "" : "," + fields) +
         "}";
}

std::optional<ApiError> parse_chat(const std::string& body, ChatRequest& request) {
  return parse_chat_request(body, {}, request);
}

ChatRequest chat(const std::string& body) {
  ChatRequest request;
  const auto error = parse_chat(body, request);
  EXPECT_FALSE(error) << error->message << " in " << body;
  return request;
}

CompletionRequest completion(const std::string& body) {
  CompletionRequest request;
  const auto error = parse_completion_request(body, {}, request);
  EXPECT_FALSE(error) << error->message << " in " << body;
  return request;
}

TEST(ChatRequestTest, HasTheDefaultsOfTheModel) {
  SamplingParams defaults;
  defaults.temperature = 0.6f;
  defaults.top_k = 40;
  ChatRequest request;
  EXPECT_FALSE(parse_chat_request(chat_with(R"("top_k":null,"model":"m")"), defaults, request));
  EXPECT_EQ(request.sampling.temperature, 0.6f);
  EXPECT_EQ(request.sampling.top_k, 40);
  EXPECT_EQ(request.sampling.logprobs, -1);
  EXPECT_EQ(request.model, "m");
  EXPECT_FALSE(request.max_tokens);
  EXPECT_FALSE(request.stream);
  EXPECT_EQ(request.n, 1);
  EXPECT_EQ(request.chat.options.effort, std::nullopt);
}

TEST(ChatRequestTest, ReadsSampling) {
  const ChatRequest request = chat(chat_with(
      R"("temperature":0,"top_p":0.5,"top_k":-1,"min_p":0.1,"repetition_penalty":1.1,
         "presence_penalty":-1,"frequency_penalty":2,"seed":18446744073709551615,
         "logit_bias":{"17":-100,"3":2.5},"max_tokens":5,"max_completion_tokens":7.0,"n":2,
         "logprobs":true,"top_logprobs":3,"stop":["a","b"],"stop_token_ids":[9],"min_tokens":2,
         "ignore_eos":true,"stream":true,"stream_options":{"include_usage":true})"));
  const SamplingParams& s = request.sampling;
  EXPECT_EQ(s.temperature, 0);
  EXPECT_EQ(s.top_p, 0.5f);
  EXPECT_EQ(s.top_k, 0);
  EXPECT_EQ(s.min_p, 0.1f);
  EXPECT_EQ(s.repetition_penalty, 1.1f);
  EXPECT_EQ(s.presence_penalty, -1);
  EXPECT_EQ(s.frequency_penalty, 2);
  EXPECT_EQ(s.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_THAT(s.logit_bias, ElementsAre(std::pair(17, -100.f), std::pair(3, 2.5f)));
  EXPECT_EQ(s.logprobs, 3);
  EXPECT_EQ(request.max_tokens, 7);  // the newer name counts
  EXPECT_EQ(request.n, 2);
  EXPECT_THAT(request.stop, ElementsAre("a", "b"));
  EXPECT_THAT(request.stop_token_ids, ElementsAre(9));
  EXPECT_EQ(request.min_tokens, 2);
  EXPECT_TRUE(request.ignore_eos && request.stream && request.include_usage);
}

TEST(ChatRequestTest, ReadsAConversationWithToolCalls) {
  const ChatRequest request = chat(R"({
    "messages":[
      {"role":"developer","content":"Be brief."},
      {"role":"user","name":"ann","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[
        {"id":"c1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}},
        {"id":"c2","type":"function","function":{"name":"g","arguments":{"y":2}}}]},
      {"role":"tool","tool_call_id":"c1","content":"7"}],
    "tools":[{"type":"function","function":{"name":"f","description":"d",
      "parameters":{"type":"object","properties":{"z":{},"a":{}}}}},
      {"type":"function","function":{"name":"g"}}],
    "tool_choice":{"type":"function","function":{"name":"g"}},
    "reasoning_effort":"high","include_reasoning":false})");
  ASSERT_EQ(request.chat.messages.size(), 4u);
  EXPECT_EQ(request.chat.messages[0].role, Role::kDeveloper);
  EXPECT_EQ(request.chat.messages[1].content, "ab");
  EXPECT_EQ(request.chat.messages[1].name, "ann");
  EXPECT_EQ(request.chat.messages[2].reasoning, "hm");
  ASSERT_EQ(request.chat.messages[2].tool_calls.size(), 2u);
  EXPECT_EQ(request.chat.messages[2].tool_calls[0].arguments, R"({"x":1})");
  EXPECT_EQ(request.chat.messages[2].tool_calls[1].arguments, R"({"y":2})");
  EXPECT_EQ(request.chat.messages[3].tool_call_id, "c1");
  ASSERT_EQ(request.chat.tools.size(), 2u);
  EXPECT_EQ(request.chat.tools[0].parameters,
            R"({"type":"object","properties":{"z":{},"a":{}}})");  // in the caller's order
  EXPECT_EQ(request.chat.tools[1].parameters, "");
  EXPECT_EQ(request.chat.options.tool_choice.kind, ToolChoice::Kind::kNamed);
  EXPECT_EQ(request.chat.options.effort, ReasoningEffort::kHigh);
  EXPECT_FALSE(request.include_reasoning);
}

TEST(ChatRequestTest, IgnoresFieldsThatChangeNothing) {
  chat(chat_with(R"("user":"u","metadata":{"a":"b"},"store":true,"service_tier":"auto",
    "parallel_tool_calls":true,"never_heard_of":[1],"modalities":["text"],"guided_json":null,
    "response_format":{"type":"text"},"typical_p":1,"mirostat":0,"functions":[],"bad_words":[],
    "prediction":{"type":"content","content":"x"},"verbosity":"medium","use_beam_search":false,
    "chat_template_kwargs":{"enable_thinking":false,"thinking_budget":5})"));
}

TEST(ChatRequestTest, EffortsOfAllApis) {
  for (const auto& [name, effort] :
       {std::pair{"none", ReasoningEffort::kLow}, std::pair{"minimal", ReasoningEffort::kLow},
        std::pair{"medium", ReasoningEffort::kMedium}, std::pair{"xhigh", ReasoningEffort::kHigh},
        std::pair{"max", ReasoningEffort::kHigh}}) {
    const std::string field = "\"reasoning_effort\":\"" + std::string(name) + "\"";
    EXPECT_EQ(chat(chat_with(field)).chat.options.effort, effort) << name;
  }
  EXPECT_EQ(chat(chat_with(R"("verbosity":"low")")).chat.options.verbosity, Verbosity::kLow);
}

TEST(ChatRequestTest, AllowedToolsAreThoseThatAreLeft) {
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"f"}},)"
      R"({"type":"function","function":{"name":"g"}}],"tool_choice":{"type":"allowed_tools",)"
      R"("allowed_tools":{"mode":"required","tools":[{"type":"function","function":{"name":"g"}}]}})";
  const Chat got = chat(chat_with(tools.c_str())).chat;
  ASSERT_EQ(got.tools.size(), 1u);
  EXPECT_EQ(got.tools[0].name, "g");
  EXPECT_EQ(got.options.tool_choice.kind, ToolChoice::Kind::kRequired);
}

TEST(ChatRequestTest, TheOldFormOfTools) {
  const ChatRequest request = chat(R"({"model":"m","functions":[{"name":"f","description":"d",
    "parameters":{"type":"object"}}],"function_call":{"name":"f"},"messages":[
    {"role":"user","content":"a"},
    {"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{\"x\":1}"}},
    {"role":"function","name":"f","content":"2"}]})");
  EXPECT_TRUE(request.is_old_form);
  ASSERT_EQ(request.chat.tools.size(), 1u);
  EXPECT_EQ(request.chat.tools[0].parameters, R"({"type":"object"})");
  EXPECT_EQ(request.chat.options.tool_choice.kind, ToolChoice::Kind::kNamed);
  const auto& messages = request.chat.messages;
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[1].tool_calls[0].arguments, R"({"x":1})");
  EXPECT_EQ(messages[2].role, Role::kTool);
  EXPECT_EQ(messages[2].tool_call_id, messages[1].tool_calls[0].id);
}

struct Bad {
  const char* fields;
  const char* param;
};

class BadChatTest : public ::testing::TestWithParam<Bad> {};

TEST_P(BadChatTest, NamesTheField) {
  ChatRequest request;
  const auto error = parse_chat(chat_with(GetParam().fields), request);
  ASSERT_TRUE(error) << GetParam().fields;
  EXPECT_EQ(error->status, 400);
  EXPECT_EQ(error->param, GetParam().param);
  EXPECT_THAT(error->message, HasSubstr(GetParam().param));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, BadChatTest,
    ::testing::Values(
        Bad{R"("temperature":-1)", "temperature"}, Bad{R"("temperature":1e38)", "temperature"},
        Bad{R"("temperature":"hot")", "temperature"}, Bad{R"("top_p":2)", "top_p"},
        Bad{R"("top_p":-0.1)", "top_p"}, Bad{R"("top_k":-5)", "top_k"},
        Bad{R"("min_p":1.5)", "min_p"}, Bad{R"("presence_penalty":1e30)", "presence_penalty"},
        Bad{R"("presence_penalty":2.1)", "presence_penalty"},
        Bad{R"("frequency_penalty":-5)", "frequency_penalty"},
        Bad{R"("min_tokens":6,"max_tokens":5)", "min_tokens"},
        Bad{R"("min_tokens":6,"max_completion_tokens":5)", "min_tokens"},
        Bad{R"("repetition_penalty":0)", "repetition_penalty"}, Bad{R"("seed":1.5)", "seed"},
        Bad{R"("seed":1e30)", "seed"}, Bad{R"("seed":18446744073709551616)", "seed"},
        Bad{R"("seed":-9223372036854775809)", "seed"}, Bad{R"("n":0)", "n"},
        Bad{R"("n":2147483648)", "n"}, Bad{R"("n":1,"best_of":3)", "best_of"},
        Bad{R"("max_tokens":0)", "max_tokens"}, Bad{R"("max_tokens":-1)", "max_tokens"},
        Bad{R"("max_tokens":1.5)", "max_tokens"},
        Bad{R"("max_tokens":9223372036854775808)", "max_tokens"},
        Bad{R"("max_completion_tokens":"many")", "max_completion_tokens"},
        Bad{R"("logit_bias":{"x":1})", "logit_bias"}, Bad{R"("logit_bias":{"-1":1})", "logit_bias"},
        Bad{R"("logit_bias":{"1\u0000x":1})", "logit_bias"},
        Bad{R"("logit_bias":{"2147483648":1})", "logit_bias"},
        Bad{R"("logit_bias":{"":1})", "logit_bias"}, Bad{R"("logit_bias":{" 1":1})", "logit_bias"},
        Bad{R"("logit_bias":{"1":"2"})", "logit_bias"},
        Bad{R"("logit_bias":{"1":101})", "logit_bias"}, Bad{R"("logit_bias":[1])", "logit_bias"},
        Bad{R"("logprobs":2)", "logprobs"}, Bad{R"("top_logprobs":3)", "top_logprobs"},
        Bad{R"("logprobs":true,"top_logprobs":1000000)", "top_logprobs"},
        Bad{R"("stop":"")", "stop"}, Bad{R"("stop":[1])", "stop"}, Bad{R"("stop":{"a":1})", "stop"},
        Bad{R"("stop_token_ids":[-1])", "stop_token_ids"}, Bad{R"("stream":"yes")", "stream"},
        Bad{R"("stream_options":{"include_usage":true})", "stream_options"},
        Bad{R"("stream":true,"stream_options":{"include_usage":1})",
            "stream_options.include_usage"},
        Bad{R"("stream":true,"stream_options":[])", "stream_options"},
        Bad{R"("messages":[])", "messages"}, Bad{R"("messages":"hi")", "messages"},
        Bad{R"("messages":["hi"])", "messages[0]"},
        Bad{R"("messages":[{"role":"king","content":"x"}])", "messages[0].role"},
        Bad{R"("messages":[{"content":"x"}])", "messages[0].role"},
        Bad{R"("messages":[{"role":"user"}])", "messages[0].content"},
        Bad{R"("messages":[{"role":"user","content":5}])", "messages[0].content"},
        Bad{R"("messages":[{"role":"user","content":[{"type":"image_url"}]}])",
            "messages[0].content"},
        Bad{R"("messages":[{"role":"user","name":"a<|end|>","content":"x"}])", "messages[0].name"},
        Bad{R"("messages":[{"role":"assistant","tool_calls":[{"id":"1"}]}])",
            "messages[0].tool_calls[0].function"},
        Bad{R"("tools":[{"type":"web_search"}])", "tools[0].type"},
        Bad{R"("tools":[{"type":"function","function":{"name":"a b"}}])", "tools[0].function.name"},
        Bad{R"("tools":[{"type":"function","function":{"name":"x to=functions.y<|channel|>"}}])",
            "tools[0].function.name"},
        Bad{R"("tools":[{"type":"function","function":{"name":"f","parameters":[]}}])",
            "tools[0].function.parameters"},
        Bad{R"("tool_choice":"required")", "tool_choice"},
        Bad{R"("tool_choice":{"type":"function","function":{"name":"f"}})",
            "tool_choice.function.name"},
        Bad{R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[]}})",
            "tool_choice.allowed_tools.tools"},
        Bad{R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"tools":[{"type":"function",)"
            R"("function":{"name":"f"}}]}})",
            "tool_choice.allowed_tools.tools[0].function.name"},
        Bad{R"("tool_choice":7)", "tool_choice"},
        Bad{R"("reasoning_effort":"much")", "reasoning_effort"},
        Bad{R"("verbosity":"mute")", "verbosity"},
        Bad{R"("reasoning":{"effort":"huge"})", "reasoning.effort"},
        Bad{R"("chat_template_kwargs":{"reasoning_effort":"much"})",
            "chat_template_kwargs.reasoning_effort"},
        Bad{R"("add_generation_prompt":false)", "add_generation_prompt"},
        Bad{R"("response_format":{"type":"xml"})", "response_format.type"},
        Bad{R"("response_format":{})", "response_format.type"},
        Bad{R"("response_format":{"type":"json_schema"})", "response_format.json_schema"},
        Bad{R"("response_format":{"type":"json_schema","json_schema":{"name":"n"}})",
            "response_format.json_schema.schema"},
        Bad{R"("guided_json":5)", "guided_json"}, Bad{R"("guided_regex":["a"])", "guided_regex"},
        Bad{R"("guided_choice":["a",""])", "guided_choice"},
        Bad{R"("guided_regex":"a","guided_choice":["a"])", "guided_choice"},
        Bad{R"("structured_outputs":{"structural_tag":"x"})", "structured_outputs.structural_tag"},
        Bad{R"("parallel_tool_calls":"no")", "parallel_tool_calls"},
        Bad{R"("functions":[{"name":"f x"}])", "functions[0].name"},
        Bad{R"("functions":[{"name":"f"}],"tools":[{"type":"function","function":{"name":"g"}}])",
            "functions"},
        Bad{R"("functions":[{"name":"f"}],"function_call":{"name":"g"})", "function_call.name"},
        Bad{R"("modalities":["text","audio"])", "modalities"},
        Bad{R"("typical_p":0.5)", "typical_p"}, Bad{R"("echo":true)", "echo"},
        Bad{R"("continue_final_message":true)", "continue_final_message"},
        Bad{R"("model":5)", "model"}));

// Of all strings together: the tables made of them are 150 times as large.
TEST(ChatRequestTest, BoundsTheBytesOfStopStrings) {
  const std::string half(4'096, 'x');
  const auto body = [&](const std::string& more) {
    return R"({"messages":[{"role":"user","content":"x"}],"stop":[")" + half + "\",\"" + half +
           "\"" + more + "]}";
  };
  ChatRequest request;
  EXPECT_FALSE(parse_chat(body(""), request));
  const auto error = parse_chat(body(R"(,"y")"), request);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->param, "stop");
}

TEST(BodyTest, RefusesWhatIsNoJsonObject) {
  const std::string deep(1'000'000, '[');
  std::string keys = "{";
  for (int i = 0; i < 2'000; ++i) keys += "\"k" + std::to_string(i) + "\":1,";
  keys += "\"z\":1}";
  std::string values = "{\"a\":[";
  for (int i = 0; i < 1'000'001; ++i) values += "1,";
  values += "1]}";
  for (const std::string& body :
       {std::string(), std::string("{"), std::string("[]"), std::string("nul"), deep,
        "{\"messages\":" + deep, keys, values, std::string("{\"a\":1e400}"),
        std::string("{\"a\":\"\xff\"}"), std::string(R"({"a":"\ud800"})"),
        std::string("{\"a\":\"\0\"}", 9), std::string(R"({"a":1}x)")}) {
    ChatRequest request;
    const auto error = parse_chat(body, request);
    ASSERT_TRUE(error) << body.substr(0, 40);
    EXPECT_EQ(error->status, 400);
  }
}

TEST(BodyTest, TakesWhatJsonAllows) {
  const ChatRequest request = chat(
      "\xEF\xBB\xBF{\"messages\":[{\"role\":\"user\",\"content\":\"a\\u0000\\ud83d\\ude00\"}],"
      "\"n\":1,\"n\":2}");
  EXPECT_EQ(request.chat.messages[0].content, std::string("a\0\xF0\x9F\x98\x80", 6));
  EXPECT_EQ(request.n, 2);  // the last one counts
}

TEST(CompletionRequestTest, ReadsEveryFormOfPrompt) {
  EXPECT_THAT(completion(R"({"prompt":"hi"})").prompts, ElementsAre(Prompt("hi")));
  EXPECT_THAT(completion(R"({"prompt":["a","b"]})").prompts, ElementsAre(Prompt("a"), Prompt("b")));
  const std::vector<int32_t> ids{1, 2};
  EXPECT_THAT(completion(R"({"prompt":[1,2]})").prompts, ElementsAre(Prompt(ids)));
  EXPECT_THAT(completion(R"({"prompt":[[1,2],"c"]})").prompts,
              ElementsAre(Prompt(ids), Prompt("c")));
  const CompletionRequest request =
      completion(R"({"prompt":"x","echo":true,"logprobs":5,"max_tokens":0})");
  EXPECT_TRUE(request.echo);
  EXPECT_EQ(request.sampling.logprobs, 5);
  EXPECT_EQ(request.max_tokens, 0);
  EXPECT_EQ(completion(R"({"prompt":"x"})").max_tokens, 16);
}

TEST(CompletionRequestTest, RefusesOtherPrompts) {
  std::string many = "[";
  for (int i = 0; i < 10'000; ++i) many += "\"x\",";
  many += "\"x\"]";
  for (const std::string& prompt :
       {std::string("5"), std::string("{}"), std::string("[-1]"), std::string("[1.5]"),
        std::string("[true]"), std::string("[[\"a\"]]"), std::string("null"), many}) {
    CompletionRequest request;
    const auto error = parse_completion_request("{\"prompt\":" + prompt + "}", {}, request);
    ASSERT_TRUE(error) << prompt.substr(0, 40);
    EXPECT_EQ(error->param, "prompt");
  }
  CompletionRequest request;
  EXPECT_TRUE(parse_completion_request(R"({"prompt":"x","max_tokens":0})", {}, request));
  EXPECT_TRUE(parse_completion_request(R"({"prompt":"x","suffix":"y"})", {}, request));
  EXPECT_TRUE(parse_completion_request(R"({"prompt":"x","logprobs":true})", {}, request));
}

TEST(ChatRequestTest, ReadsTheFormOfTheAnswer) {
  const auto format = [](const std::string& fields) {
    ChatRequest request;
    EXPECT_FALSE(parse_chat(chat_with(fields), request)) << fields;
    return request;
  };
  EXPECT_EQ(format(R"("response_format":{"type":"json_object"})").format->kind,
            GrammarSpec::Kind::kJsonObject);
  const ChatRequest schema = format(
      R"("response_format":{"type":"json_schema","json_schema":{"name":"n","description":"d",)"
      R"("schema":{"type":"string"},"strict":true}})");
  EXPECT_EQ(schema.format->text, R"({"type":"string"})");
  EXPECT_FALSE(schema.format->lenient);
  EXPECT_EQ(schema.chat.options.response_format->name, "n");
  EXPECT_EQ(schema.chat.options.response_format->schema, R"({"type":"string"})");
  EXPECT_TRUE(format(R"("response_format":{"type":"json_schema","json_schema":{"name":"n",)"
                     R"("schema":{},"strict":false}})")
                  .format->lenient);
  EXPECT_EQ(format(R"("guided_json":"{\"type\":\"null\"}")").format->text, R"({"type":"null"})");
  EXPECT_THAT(format(R"("structured_outputs":{"choice":["a","b"]})").format->choices,
              ElementsAre("a", "b"));
  EXPECT_EQ(format(R"("guided_grammar":"root ::= \"a\"")").format->kind, GrammarSpec::Kind::kEbnf);
  EXPECT_FALSE(format(R"("response_format":{"type":"text"})").format);
}

TEST(TokenizeRequestTest, ReadsTextsAndChats) {
  TokenizeRequest request;
  EXPECT_FALSE(parse_tokenize_request(R"({"prompt":"hi","add_special_tokens":false})", request));
  EXPECT_EQ(request.prompt, "hi");
  EXPECT_FALSE(request.add_special_tokens);
  TokenizeRequest chat;
  EXPECT_FALSE(parse_tokenize_request(chat_with(""), chat));
  EXPECT_FALSE(chat.prompt);
  EXPECT_EQ(chat.chat->messages.size(), 1u);
  EXPECT_TRUE(parse_tokenize_request("{}", request));
  DetokenizeRequest ids;
  EXPECT_FALSE(parse_detokenize_request(R"({"tokens":[1,2]})", ids));
  EXPECT_THAT(ids.tokens, ElementsAre(1, 2));
  EXPECT_TRUE(parse_detokenize_request(R"({"tokens":["1"]})", ids));
  EXPECT_TRUE(parse_detokenize_request("{}", ids));
}

}  // namespace
}  // namespace nibble::server
