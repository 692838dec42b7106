// A server that drafts tokens ahead answers as one that does not: to forms, stop strings, calls,
// several answers, at any temperature. One engine gives both: a request may say no.
#include "base/error.h"
#include "server_testing.h"

namespace nibble::server {
namespace {

Shipped& speculating() {
  static Shipped shipped([] {
    cli::EngineFlags flags;
    flags.exact = true;
    flags.speculative_config = R"({"method":"ngram","num_speculative_tokens":5,
        "prompt_lookup_min":1,"prompt_lookup_max":4,"adaptive":false})";
    return flags;
  }());
  return shipped;
}

TEST(Speculation, AModelWithoutAnMtpLayerIsRefused) {
  cli::EngineFlags flags;
  flags.model = NIBBLE_SOURCE_DIR "/models/nibble-tiny-gpt-oss";
  flags.device = "cpu";
  flags.speculative_config = R"({"method":"mtp","num_speculative_tokens":1})";
  try {
    cli::load_engine(flags, {.quiet = true});
    ADD_FAILURE() << "is not refused";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("is of no family whose MTP layer nibble runs"));
  }
}

class SpeculationServer : public ServerTest {
 protected:
  SpeculationServer() {
    listen();
    server_->serve(speculating().served());
  }
  ~SpeculationServer() override { counts(); }

  // The engine tells of a step once it is over, which may be after the client has its answer.
  static SpeculationCounts counts() {
    EXPECT_TRUE(eventually([] { return speculating().engine().stats().num_running == 0; }));
    return speculating().engine().stats().speculation;
  }

  // What is said in answer, without what differs from one answer to the next in any case.
  json said(const std::string& path, const json& body) {
    const Answer answer = post(path, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    json choices = answer.parsed()["choices"];
    for (json& choice : choices) {
      if (!choice.contains("message") || !choice["message"].contains("tool_calls")) continue;
      for (json& call : choice["message"]["tool_calls"]) call.erase("id");
    }
    return choices;
  }
  void expect_same(const std::string& path, const json& body) {
    for (const double temperature : {0.0, 0.7, 1.2}) {
      for (const int32_t seed : {1, 2, 3}) {
        const json asked = with(body, {{"temperature", temperature}, {"seed", seed}});
        const json plain = said(path, with(asked, {{"num_speculative_tokens", 0}}));
        EXPECT_EQ(said(path, asked), plain) << asked;
      }
    }
  }
};

TEST_F(SpeculationServer, SameAnswersInChats) {
  const int64_t before = counts().num_accepted_tokens;
  expect_same("/v1/chat/completions", with(kParis, {{"logprobs", true}, {"top_logprobs", 2}}));
  expect_same("/v1/chat/completions", with(kParis, {{"n", 3}, {"max_tokens", 40}}));
  EXPECT_GT(counts().num_accepted_tokens, before);
}

TEST_F(SpeculationServer, SameFormsAndCalls) {
  const json schema = {
      {"type", "object"},
      {"properties", {{"name", {{"type", "string"}}}, {"count", {{"type", "integer"}}}}},
      {"required", {"name", "count"}},
      {"additionalProperties", false}};
  expect_same(
      "/v1/chat/completions",
      with(kParis,
           {{"max_tokens", 200},
            {"response_format",
             {{"type", "json_schema"}, {"json_schema", {{"name", "it"}, {"schema", schema}}}}}}));
  expect_same("/v1/completions", {{"prompt", "The list:"},
                                  {"max_tokens", 60},
                                  {"structured_outputs", {{"regex", "(ab|cd|1, 2, ){4,40}"}}}});
  const json tool = {{"type", "function"},
                     {"function", {{"name", "get_weather"}, {"parameters", schema}}}};
  expect_same("/v1/chat/completions",
              with(kParis, {{"max_tokens", 120}, {"tools", {tool}}, {"tool_choice", "required"}}));
}

TEST_F(SpeculationServer, SameStopsPenaltiesAndBounds) {
  const json text = {{"prompt", "One, two, three. One, two, three. One, two,"}, {"max_tokens", 60}};
  expect_same("/v1/completions", with(text, {{"stop", {"e", ". O"}}}));
  expect_same("/v1/completions",
              with(text, {{"frequency_penalty", 0.6}, {"presence_penalty", 0.3}}));
  expect_same("/v1/completions", with(text, {{"min_tokens", 40}, {"logprobs", 2}, {"echo", true}}));
  expect_same("/v1/completions", with(text, {{"logit_bias", {{"17", 3}}}, {"top_p", 0.8}}));
}

TEST_F(SpeculationServer, CountsUnderVllmsNames) {
  completion({{"prompt", "One, two, three. One, two, three. One, two,"}, {"max_tokens", 60}});
  const SpeculationCounts counts = SpeculationServer::counts();
  EXPECT_GT(counts.num_accepted_tokens, 0);
  const std::string page = ask("GET", "/metrics").body;
  const auto has = [&](const std::string& name, const std::string& label, int64_t value) {
    EXPECT_THAT(page,
                ::testing::HasSubstr("\nvllm:spec_decode_" + name + "_total{model_name=\"tiny\"" +
                                     label + "} " + std::to_string(value) + "\n"));
  };
  has("num_drafts", "", counts.num_drafts);
  has("num_draft_tokens", "", counts.num_draft_tokens);
  has("num_accepted_tokens", "", counts.num_accepted_tokens);
  for (int32_t i = 0; i < 5; ++i) {
    has("num_accepted_tokens_per_pos", ",position=\"" + std::to_string(i) + "\"",
        counts.accepted_at[i]);
  }
}

// In every API.
TEST_F(SpeculationServer, ARequestMaySayNo) {
  const std::string text = "One, two, three. One, two, three. One, two,";
  const json messages = {{{"role", "user"}, {"content", text}}};
  const std::pair<const char*, json> kAll[] = {
      {"/v1/completions", {{"prompt", text}, {"max_tokens", 40}}},
      {"/v1/chat/completions", {{"messages", messages}, {"max_tokens", 40}}},
      {"/v1/responses", {{"input", messages}, {"max_output_tokens", 40}}},
      {"/v1/messages", {{"model", "tiny"}, {"messages", messages}, {"max_tokens", 40}}}};
  for (const auto& [path, body] : kAll) {
    const auto num_drafted = [&](const json& more) {
      const int64_t before = counts().num_draft_tokens;
      EXPECT_EQ(post(path, with(with(body, {{"temperature", 0}}), more)).status, 200) << path;
      return counts().num_draft_tokens - before;
    };
    EXPECT_GT(num_drafted(json::object()), 0) << path;
    EXPECT_EQ(num_drafted({{"num_speculative_tokens", 0}}), 0) << path;
  }
}

TEST_F(SpeculationServer, RefusesMoreDraftsThanThereEverAre) {
  const Answer answer =
      post("/v1/chat/completions", with(kParis, {{"num_speculative_tokens", 33}}));
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.error(), ::testing::HasSubstr("num_speculative_tokens"));
}

}  // namespace
}  // namespace nibble::server
