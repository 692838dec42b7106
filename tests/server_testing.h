// A server over the shipped model, for the tests that ask it as clients do: real sockets, real
// engine, real weights.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "cli/engine_setup.h"
#include "cli/text_setup.h"
#include "server/http_testing.h"
#include "server/server.h"

namespace nibble::server {

using nlohmann::json;

constexpr int32_t kContext = 2048;
constexpr int32_t kMaxSeqs = 4;

// Loaded once for all tests; the engine steps on its own thread.
struct Shipped {
  Shipped() { load(); }
  explicit Shipped(cli::EngineFlags other) : flags(std::move(other)) { load(); }
  void load() {
    flags.model = NIBBLE_SOURCE_DIR "/models/nibble-tiny-gpt-oss";
    flags.max_model_len = kContext;
    flags.max_num_seqs = kMaxSeqs;
    flags.max_num_batched_tokens = 128;
    const ModelFiles files = find_model(flags.model);
    text = cli::load_text_side(
        files, static_cast<int32_t>(files.config.integer("vocab_size", 1, 1 << 20)));
    loaded.emplace(cli::load_engine(flags, {.masked_ids = text->masked_ids, .quiet = true}));
    loaded->engine->start();
  }
  static Shipped& get() {
    static Shipped shipped;
    return shipped;
  }
  Engine& engine() { return *loaded->engine; }
  ServedModel served() {
    ServedModel model;
    model.engine = &engine();
    model.tokenizer = &text->tokenizer;
    model.chat_format = text->chat_format.get();
    model.names = {"tiny", "alias/tiny"};
    model.defaults = text->defaults;
    model.stop_ids = text->stop_ids;
    model.current_date = "2026-01-15";
    return model;
  }

  cli::EngineFlags flags;
  std::unique_ptr<cli::TextSide> text;
  std::optional<cli::LoadedEngine> loaded;
};

struct Answer {
  int status = 0;
  std::string head;
  std::string body;
  json parsed() const { return json::parse(body); }
  std::string error() const { return parsed()["error"]["message"]; }
};

class ServerTest : public ::testing::Test {
 protected:
  ServerTest() {
    options_.http.port = 0;
    options_.version = "1.2.3";
    options_.max_num_seqs = kMaxSeqs;
  }
  ~ServerTest() override {
    if (server_) server_->drain(std::chrono::milliseconds(0));
    EXPECT_TRUE(eventually([] { return Shipped::get().engine().stats().num_running == 0; }));
  }

  void listen() {
    server_ = std::make_unique<Server>(options_);
    server_->start();
  }
  void serve() {
    listen();
    server_->serve(Shipped::get().served());
  }

  static std::string request(const std::string& method, const std::string& path,
                             const std::string& body, const std::string& headers = {}) {
    return method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }

  // One request on a connection of its own.
  Answer ask(const std::string& method, const std::string& path, const std::string& body = {},
             const std::string& headers = {}) {
    RawClient client(server_->port());
    client.send_bytes(request(method, path, body, headers + "Connection: close\r\n"));
    const std::string all = client.read_to_end();
    Answer answer;
    const size_t end = all.find("\r\n\r\n");
    if (end == std::string::npos || !all.starts_with("HTTP/1.1 ")) return answer;
    answer.status = std::stoi(all.substr(9, 3));
    answer.head = all.substr(0, end + 2);
    answer.body = all.substr(end + 4);
    if (answer.head.find("chunked") != std::string::npos) answer.body = unchunk(answer.body);
    return answer;
  }
  Answer post(const std::string& path, const json& body) { return ask("POST", path, body.dump()); }
  json chat(json body) {
    if (!body.contains("temperature")) body["temperature"] = 0;
    const Answer answer = post("/v1/chat/completions", body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.parsed();
  }
  json completion(json body) {
    if (!body.contains("temperature")) body["temperature"] = 0;
    const Answer answer = post("/v1/completions", body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.parsed();
  }

  static std::string unchunk(std::string_view body) {
    std::string text;
    for (;;) {
      const size_t line = body.find("\r\n");
      if (line == std::string_view::npos) return text + "<cut off>";
      const size_t size = std::stoul(std::string(body.substr(0, line)), nullptr, 16);
      if (size == 0) return text;
      text += body.substr(line + 2, size);
      body.remove_prefix(line + 2 + size + 2);
    }
  }

  // The JSON events of a stream, which has to end with [DONE].
  std::vector<json> stream(const std::string& path, json body) {
    body["stream"] = true;
    if (!body.contains("temperature")) body["temperature"] = 0;
    const Answer answer = post(path, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_THAT(answer.head, ::testing::HasSubstr("Content-Type: text/event-stream"));
    EXPECT_THAT(answer.body, ::testing::EndsWith("\n\ndata: [DONE]\n\n"));
    std::vector<json> events;
    std::istringstream lines(answer.body);
    for (std::string line; std::getline(lines, line);) {
      if (line.empty() || line == "data: [DONE]") continue;
      EXPECT_THAT(line, ::testing::StartsWith("data: {"));
      events.push_back(json::parse(line.substr(6)));
    }
    return events;
  }

  // Waits for what the engine's and the server's threads are about to do.
  static bool eventually(const std::function<bool()>& holds) {
    for (int i = 0; i < 2'000 && !holds(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return holds();
  }

  ServerOptions options_;
  std::unique_ptr<Server> server_;
};

inline const json kParis = {
    {"messages", {{{"role", "user"}, {"content", "What is the capital of France?"}}}}};

inline json with(json body, const json& fields) {
  body.update(fields);
  return body;
}

// Does not end by itself: no stop id counts, and there is room for 1,900 tokens.
inline const json kEndless = {{"prompt", "What"}, {"max_tokens", 1900}, {"ignore_eos", true}};

}  // namespace nibble::server
