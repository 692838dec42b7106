// What the server refuses, and what becomes of requests whose client or server goes away.
#include <limits>

#include "server_testing.h"

namespace nibble::server {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST_F(ServerTest, AnswersErrorsInOpenAisShape) {
  serve();
  const Answer bad = post("/v1/chat/completions", with(kParis, {{"temperature", -1}}));
  EXPECT_EQ(bad.status, 400);
  const json error = bad.parsed()["error"];
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_EQ(error["param"], "temperature");
  EXPECT_TRUE(error["code"].is_null());
  EXPECT_THAT(bad.head, HasSubstr("X-Request-Id: "));

  EXPECT_EQ(ask("POST", "/v1/chat/completions", "{").status, 400);
  EXPECT_EQ(ask("GET", "/v1/chat/completions").status, 405);
  EXPECT_EQ(ask("DELETE", "/v1/models").status, 405);
  for (const char* path : {"/v2", "/v1/", "/../etc/passwd", "/%00", "/v1/models%20", "/health/"}) {
    EXPECT_EQ(ask("GET", path).status, 404) << path;
  }
  EXPECT_EQ(post("/v1/completions", {{"prompt", {1'000'000}}}).status, 400);
  EXPECT_EQ(post("/v1/completions", {{"prompt", ""}}).status, 400);
  EXPECT_EQ(post("/v1/completions", {{"prompt", json::array()}}).status, 400);
}

TEST_F(ServerTest, NamesTheFieldOfIdsOutsideTheVocabulary) {
  serve();
  const int32_t size = Shipped::get().engine().model().info().vocab_size;
  for (const int32_t id : {size, std::numeric_limits<int32_t>::max()}) {
    const json bad[] = {{{"logit_bias", {{std::to_string(id), 1}}}}, {{"stop_token_ids", {1, id}}}};
    for (const json& fields : bad) {
      const std::string field = fields.begin().key();
      for (const bool is_chat : {true, false}) {
        const Answer answer = is_chat ? post("/v1/chat/completions", with(kParis, fields))
                                      : post("/v1/completions", with(kEndless, fields));
        EXPECT_EQ(answer.status, 400);
        EXPECT_EQ(answer.parsed()["error"]["param"], field);
        EXPECT_THAT(answer.error(), StartsWith(field + " has the id " + std::to_string(id)));
      }
    }
  }
  const json last = {{"logit_bias", {{std::to_string(size - 1), -1}}},
                     {"stop_token_ids", {size - 1}},
                     {"max_tokens", 1}};
  completion(with(kEndless, last));
}

TEST_F(ServerTest, RefusesPromptsThatDoNotFit) {
  serve();
  const auto fits = [&](size_t tokens) {
    return post("/v1/completions", {{"prompt", std::vector<int>(tokens, 300)}, {"max_tokens", 1}})
        .status;
  };
  EXPECT_EQ(fits(kContext - 1), 200);
  EXPECT_EQ(fits(kContext), 400);
  EXPECT_EQ(fits(100 * kContext), 400);
  const auto scored = [&](size_t tokens) {
    return post("/v1/completions",
                {{"prompt", std::vector<int>(tokens, 300)}, {"max_tokens", 0}, {"echo", true}});
  };
  EXPECT_EQ(scored(kContext).status, 200);
  const json error = scored(kContext + 1).parsed()["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["param"], "prompt");
  for (const char* c : {"a", " ", "\u00e9", "\u0301"}) {  // 10 MB of one character
    std::string text;
    while (text.size() < 10'000'000) text += c;
    const Answer answer =
        post("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", text}}}}});
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(answer.parsed()["error"]["code"], "context_length_exceeded");
  }
}

TEST_F(ServerTest, GuardsByTheApiKey) {
  options_.access.api_keys = {"secret"};
  serve();
  EXPECT_EQ(ask("GET", "/health").status, 200);
  EXPECT_EQ(ask("GET", "/").status, 200);
  EXPECT_EQ(ask("GET", "/v1/models").status, 401);
  EXPECT_EQ(post("/v1/chat/completions", kParis).status, 401);
  EXPECT_EQ(post("/tokenize", {{"prompt", "x"}}).status, 401);
  EXPECT_EQ(post("/detokenize", {{"tokens", {1}}}).status, 401);
  EXPECT_EQ(ask("GET", "/v1/models", "", "Authorization: Bearer secret\r\n").status, 200);
}

TEST_F(ServerTest, KeepsStrangePagesOut) {
  options_.access.allowed_hosts.emplace();
  serve();
  RawClient client(server_->port());
  client.send_bytes("GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n");
  EXPECT_THAT(client.read_answer(), StartsWith("HTTP/1.1 403"));
  EXPECT_EQ(ask("GET", "/v1/models", "", "Origin: https://evil.example\r\n").status, 403);
  const Answer preflight =
      ask("OPTIONS", "/v1/chat/completions", "", "Origin: http://localhost:3000\r\n");
  EXPECT_EQ(preflight.status, 204);
  EXPECT_THAT(preflight.head, HasSubstr("Access-Control-Allow-Origin: http://localhost:3000"));
  const Answer page = ask("GET", "/");
  EXPECT_THAT(
      page.head,
      HasSubstr("Content-Security-Policy: default-src 'none'; script-src 'self'; style-src"));
  EXPECT_THAT(page.body, HasSubstr("<title>nibble</title>"));
  EXPECT_THAT(ask("GET", "/ui/app.js").head, HasSubstr("Content-Encoding: gzip"));
  EXPECT_EQ(ask("GET", "/ui/none.js").status, 404);
}

// Of the tokens that it asked for, the rest is not generated.
void expect_freed(const std::function<bool(const std::function<bool()>&)>& eventually,
                  int64_t before, int64_t asked) {
  Engine& engine = Shipped::get().engine();
  EXPECT_TRUE(eventually([&] { return engine.stats().num_running == 0; }));
  EXPECT_LT(engine.stats().generation_tokens - before, asked);
}

TEST_F(ServerTest, FreesTheSlotOfAClientThatLeavesItsStream) {
  serve();
  const int64_t before = Shipped::get().engine().stats().generation_tokens;
  RawClient client(server_->port());
  client.send_bytes(request("POST", "/v1/completions", with(kEndless, {{"stream", true}}).dump()));
  EXPECT_THAT(client.read_until("data: {"), EndsWith("data: {"));
  EXPECT_EQ(Shipped::get().engine().stats().num_running, 1);
  client.reset();
  expect_freed(eventually, before, 1'900);
  EXPECT_TRUE(eventually([&] { return server_->num_active() == 0; }));
}

TEST_F(ServerTest, FreesTheSlotOfAClientThatDoesNotWaitForItsAnswer) {
  serve();
  const int64_t before = Shipped::get().engine().stats().generation_tokens;
  RawClient client(server_->port());
  client.send_bytes(request("POST", "/v1/completions", with(kEndless, {{"n", 3}}).dump()));
  EXPECT_TRUE(eventually([&] { return Shipped::get().engine().stats().num_running == 3; }));
  client.hang_up();
  expect_freed(eventually, before, 3 * 1'900);
}

TEST_F(ServerTest, FreesTheQueueWhereAllClientsLeaveAtOnce) {
  options_.max_queued_requests = 60;
  serve();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 40; ++i) {
    clients.push_back(std::make_unique<RawClient>(server_->port()));
    clients.back()->send_bytes(request("POST", "/v1/completions", kEndless.dump()));
  }
  EXPECT_TRUE(eventually([&] { return server_->num_active() == 40; }));
  clients.clear();
  EXPECT_TRUE(eventually([&] { return server_->num_active() == 0; }));
  EXPECT_EQ(chat(kParis)["choices"][0]["finish_reason"], "stop");
}

TEST_F(ServerTest, RefusesBeyondItsQueue) {
  options_.max_queued_requests = 1;
  serve();
  RawClient client(server_->port());
  client.send_bytes(request("POST", "/v1/completions", with(kEndless, {{"n", 5}}).dump()));
  EXPECT_TRUE(eventually([&] { return server_->num_active() == 5; }));
  const Answer refused = post("/v1/chat/completions", kParis);
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.head, HasSubstr("Retry-After: 1\r\n"));
}

TEST_F(ServerTest, RefusesForGoodWhatItsQueueCanNeverHold) {
  options_.max_queued_requests = 1;
  serve();
  const auto refuse = [&](const std::string& path, const json& body, const char* param) {
    const Answer answer = post(path, body);
    EXPECT_EQ(answer.status, 400);
    EXPECT_THAT(answer.head, Not(HasSubstr("Retry-After")));
    EXPECT_EQ(answer.parsed()["error"]["param"], param);
    EXPECT_THAT(answer.error(), HasSubstr("6 sequences (prompts times n); the server takes"));
  };
  refuse("/v1/completions", with(kEndless, {{"n", 6}}), "n");
  refuse("/v1/completions", with(kEndless, {{"prompt", {"a", "b"}}, {"n", 3}}), "n");
  refuse("/v1/completions",
         with(kEndless, {{"prompt", json::array({"a", "a", "a", "a", "a", "a"})}}), "prompt");
  refuse("/v1/chat/completions", with(kParis, {{"n", 6}}), "n");
}

TEST_F(ServerTest, EndsRequestsAtTheirDeadline) {
  serve();
  const json at_once = {{"timeout", 0}};
  EXPECT_EQ(post("/v1/chat/completions", with(kParis, at_once)).status, 504);
  EXPECT_EQ(post("/v1/completions", with(kEndless, at_once)).status, 504);
  EXPECT_EQ(post("/v1/responses", {{"input", "Hello"}, {"timeout", 0}}).status, 504);
  const Answer message = post("/v1/messages", with(kParis, {{"timeout", 0}, {"max_tokens", 100}}));
  EXPECT_EQ(message.status, 504);
  EXPECT_EQ(message.parsed()["error"]["type"], "timeout_error");
  // Four times 1,900 tokens take longer: no text, or a stream that ends with the error.
  const Answer late =
      post("/v1/completions", with(kEndless, {{"timeout", 0.05}, {"n", 4}, {"stream", true}}));
  EXPECT_THAT(late.status, ::testing::AnyOf(200, 504));
  EXPECT_THAT(late.body, HasSubstr("was not done by its deadline"));
  EXPECT_EQ(chat(with(kParis, {{"timeout", 600}}))["choices"][0]["finish_reason"], "stop");
  for (const json& bad : {json(-1), json("1"), json(1e9)}) {
    const Answer refused = post("/v1/chat/completions", with(kParis, {{"timeout", bad}}));
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.parsed()["error"]["param"], "timeout");
  }
}

TEST_F(ServerTest, TakesPrioritiesOnlyWhereTheOperatorDoes) {
  for (const bool allowed : {false, true}) {
    options_.by_priority = allowed;
    serve();
    const auto status = [&](const char* path, json body, int priority) {
      body.update({{"priority", priority}, {"max_tokens", 2}});
      const Answer answer = post(path, body);
      if (answer.status == 400 && !allowed && std::abs(priority) <= 10) {
        EXPECT_THAT(answer.error(), HasSubstr("--scheduling-policy priority"));
      }
      return answer.status;
    };
    const std::pair<const char*, json> all[] = {{"/v1/chat/completions", kParis},
                                                {"/v1/completions", kEndless},
                                                {"/v1/responses", {{"input", "Hello"}}},
                                                {"/v1/messages", kParis}};
    for (const auto& [path, body] : all) {
      EXPECT_EQ(status(path, body, 0), 200) << path;
      EXPECT_EQ(status(path, body, -10), allowed ? 200 : 400) << path;
      EXPECT_EQ(status(path, body, 1), allowed ? 200 : 400) << path;
      EXPECT_EQ(status(path, body, -11), 400) << path;
      EXPECT_EQ(status(path, body, -1'000'000), 400) << path;
    }
    server_->stop();
  }
}

TEST_F(ServerTest, EndsStreamsWithAnErrorWhenItShutsDown) {
  serve();
  RawClient client(server_->port());
  client.send_bytes(request("POST", "/v1/completions", with(kEndless, {{"stream", true}}).dump()));
  client.read_until("data: {");
  RawClient waiting(server_->port());
  waiting.send_bytes(request("POST", "/v1/completions", kEndless.dump()));
  EXPECT_TRUE(eventually([&] { return server_->num_active() == 2; }));
  server_->drain(std::chrono::milliseconds(0));
  EXPECT_THAT(client.read_to_end(), AllOf(HasSubstr(R"(data: {"error":{"message":"the server is)"),
                                          HasSubstr("data: [DONE]"), EndsWith("0\r\n\r\n")));
  EXPECT_THAT(waiting.read_to_end(), StartsWith("HTTP/1.1 503"));
}

TEST_F(ServerTest, ShutsDownWhileTheLastClientLeaves) {
  serve();
  RawClient client(server_->port());
  client.send_bytes(request("POST", "/v1/completions", kEndless.dump()));
  EXPECT_TRUE(eventually([&] { return server_->num_active() == 1; }));
  client.hang_up();
  server_->drain(std::chrono::seconds(60));
  EXPECT_EQ(server_->num_active(), 0);  // its end was counted, though no connection was left
}

TEST_F(ServerTest, FinishesWhatIsUnderWayWhenItShutsDown) {
  serve();
  RawClient client(server_->port());
  client.send_bytes(
      request("POST", "/v1/chat/completions", with(kParis, {{"temperature", 0}}).dump()));
  EXPECT_TRUE(eventually([&] { return server_->num_active() == 1; }));
  server_->drain(std::chrono::seconds(60));
  EXPECT_THAT(client.read_to_end(), HasSubstr("The capital of France is Paris."));
}

TEST_F(ServerTest, RefusesChatsOfModelsWithoutAChatFormat) {
  listen();
  ServedModel model = Shipped::get().served();
  model.chat_format = nullptr;
  server_->serve(model);
  const Answer refused = post("/v1/chat/completions", kParis);
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.error(), HasSubstr("/v1/completions"));
  EXPECT_EQ(post("/tokenize", kParis).status, 400);
  EXPECT_EQ(completion({{"prompt", "Hi"}, {"max_tokens", 2}})["usage"]["completion_tokens"], 2);
}

}  // namespace
}  // namespace nibble::server
