// The server with a chat format of a template: the shipped model, which speaks Harmony and no word
// of these formats, under the templates of others. What it says is nonsense; that it is of the
// right form is the grammars', the parser's and the APIs' doing.
#include <fstream>
#include <iterator>

#include "server_testing.h"
#include "text/chat/template_format.h"

namespace nibble::server {
namespace {

using testing::HasSubstr;

class ServerTemplateTest : public ServerTest {
 protected:
  void serve_with(const std::string& name) {
    std::ifstream file(NIBBLE_SOURCE_DIR "/build/jinja/models/templates/" + name + ".jinja");
    const std::string source{std::istreambuf_iterator<char>(file), {}};
    format_ = std::make_unique<TemplateFormat>(
        Shipped::get().text->tokenizer, ChatTemplate::parse(source, name),
        markup_of_template(source), std::vector<std::pair<std::string, std::string>>{});
    listen();
    ServedModel model = Shipped::get().served();
    model.chat_format = format_.get();
    server_->serve(model);
  }

  static json question(const json& more) {
    json body = {{"messages", {{{"role", "user"}, {"content", "What is 3 + 4?"}}}},
                 {"max_tokens", 300},
                 {"temperature", 0.8},
                 {"chat_template_kwargs", {{"enable_thinking", false}}}};
    body.update(more);
    return body;
  }
  static json tools() {
    const json parameters = {
        {"type", "object"},
        {"properties", {{"op", {{"enum", {"add", "subtract"}}}}, {"exact", {{"type", "boolean"}}}}},
        {"required", {"op", "exact"}},
        {"additionalProperties", false}};
    return {
        {{"type", "function"}, {"function", {{"name", "compute"}, {"parameters", parameters}}}}};
  }
  static void expect_call(const json& call) {
    EXPECT_EQ(call["function"]["name"], "compute");
    const json arguments = json::parse(call["function"]["arguments"].get<std::string>());
    EXPECT_TRUE(arguments["op"] == "add" || arguments["op"] == "subtract") << arguments;
    EXPECT_TRUE(arguments["exact"].is_boolean()) << arguments;
  }

  std::unique_ptr<TemplateFormat> format_;
};

TEST_F(ServerTemplateTest, CallsInEveryToolFormat) {
  for (const char* name : {"Qwen-Qwen3-0.6B", "Qwen3-Coder", "meta-llama-Llama-3.1-8B-Instruct"}) {
    serve_with(name);
    for (int seed = 0; seed < 3; ++seed) {
      for (const json& choice :
           {json("required"), json({{"type", "function"}, {"function", {{"name", "compute"}}}})}) {
        const json more = {{"tools", tools()},
                           {"tool_choice", choice},
                           {"seed", seed},
                           {"parallel_tool_calls", false}};
        const json answer = chat(question(more));
        const json& first = answer["choices"][0];
        EXPECT_EQ(first["finish_reason"], choice == "required" ? "tool_calls" : "stop") << name;
        ASSERT_EQ(first["message"]["tool_calls"].size(), 1u) << name << answer;
        expect_call(first["message"]["tool_calls"][0]);
        // The same, streamed.
        std::string arguments;
        for (const json& event : stream("/v1/chat/completions", question(more))) {
          for (const json& call : event["choices"][0]["delta"].value("tool_calls", json::array())) {
            arguments += call["function"]["arguments"].get<std::string>();
          }
        }
        EXPECT_EQ(json(arguments), first["message"]["tool_calls"][0]["function"]["arguments"])
            << name;
      }
    }
    server_->drain(std::chrono::milliseconds(0));
    server_.reset();
  }
}

TEST_F(ServerTemplateTest, HoldsContentToItsForm) {
  serve_with("Qwen-Qwen3-0.6B");
  const json schema = {{"type", "object"},
                       {"properties", {{"yes", {{"type", "boolean"}}}}},
                       {"required", {"yes"}},
                       {"additionalProperties", false}};
  for (int seed = 0; seed < 3; ++seed) {
    const json answer = chat(question(
        {{"seed", seed},
         {"response_format",
          {{"type", "json_schema"}, {"json_schema", {{"name", "n"}, {"schema", schema}}}}}}));
    const std::string content = answer["choices"][0]["message"]["content"];
    EXPECT_TRUE(json::parse(content)["yes"].is_boolean()) << content;
  }
}

TEST_F(ServerTemplateTest, SpeaksAllApis) {
  serve_with("Qwen-Qwen3-0.6B");
  const json message = {{"role", "user"}, {"content", "What is 3 + 4?"}};
  const Answer responses =
      post("/v1/responses", {{"input", "What is 3 + 4?"}, {"max_output_tokens", 20}});
  EXPECT_EQ(responses.status, 200) << responses.body;
  const Answer messages =
      post("/v1/messages",
           {{"model", "tiny"}, {"max_tokens", 20}, {"messages", json::array({message})}});
  EXPECT_EQ(messages.status, 200) << messages.body;
  const Answer count =
      post("/v1/messages/count_tokens", {{"model", "tiny"}, {"messages", json::array({message})}});
  EXPECT_GT(count.parsed()["input_tokens"], 5) << count.body;
  const Answer ids = post("/tokenize", {{"messages", json::array({message})}});
  const Answer text = post("/detokenize", {{"tokens", ids.parsed()["tokens"]}});
  EXPECT_EQ(text.parsed()["prompt"],
            "<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n<|im_start|>assistant\n");
}

TEST_F(ServerTemplateTest, AnswersWithWhatTheTemplateRaises) {
  format_ = std::make_unique<TemplateFormat>(
      Shipped::get().text->tokenizer,
      ChatTemplate::parse("{% if messages | length > 1 %}{{ raise_exception('One at a time') }}"
                          "{% endif %}{{ messages[0].content }}",
                          "t"),
      AnswerMarkup{}, std::vector<std::pair<std::string, std::string>>{});
  listen();
  ServedModel model = Shipped::get().served();
  model.chat_format = format_.get();
  server_->serve(model);
  const json message = {{"role", "user"}, {"content", "a"}};
  const Answer refused = post("/v1/chat/completions", {{"messages", {message, message}}});
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.error(), HasSubstr("One at a time"));
}

}  // namespace
}  // namespace nibble::server
