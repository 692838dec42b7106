// What clients send: requests of real ones as tools/record_clients.py recorded them, and those of
// tests/data/client_requests.jsonl, written in the shape of more clients. Each gets its status, and
// an answer that holds what it must.
#include <fstream>

#include "server_testing.h"

namespace nibble::server {
namespace {

TEST_F(ServerTest, AnswersWhatClientsSend) {
  serve();
  std::ifstream file(NIBBLE_SOURCE_DIR "/tests/data/client_requests.jsonl");
  int count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    const json row = json::parse(line);
    SCOPED_TRACE(row["client"].get<std::string>());
    const Answer answer = post(row["path"], row["body"]);
    EXPECT_EQ(answer.status, row["status"].get<int>()) << answer.body;
    if (answer.status != row["status"].get<int>()) continue;
    const json reply = answer.parsed();
    for (const auto& [pointer, part] : row["expect"].items()) {  // "": it is there
      const json::json_pointer at(pointer);
      ASSERT_TRUE(reply.contains(at)) << pointer << " in " << answer.body;
      const json& value = reply[at];
      EXPECT_THAT(value.is_string() ? value.get<std::string>() : value.dump(),
                  ::testing::HasSubstr(part.get<std::string>()))
          << pointer;
    }
  }
  EXPECT_GE(count, 15);
}

TEST_F(ServerTest, AnswersWhatWasRecordedOfClients) {
  serve();
  std::ifstream file(NIBBLE_SOURCE_DIR "/tests/data/recorded_clients.jsonl");
  int count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    const json row = json::parse(line);
    SCOPED_TRACE(row["client"].get<std::string>());
    std::string headers, body = row["body"];
    for (const auto& [name, value] : row["headers"].items()) {
      headers += name + ": " + value.get<std::string>() + "\r\n";
    }
    if (const size_t at = body.find("LONG"); at != std::string::npos) {  // was cut in the file
      std::string words;
      for (int i = 0; i < 8'900; ++i) words += "word ";
      body.replace(at, 4, words);
    }
    const Answer answer = ask(row["method"], row["path"], body, headers);
    EXPECT_EQ(answer.status, row["status"].get<int>()) << answer.body;
    for (const json& part : row["expect"]) {
      EXPECT_THAT(answer.body, ::testing::HasSubstr(part.get<std::string>()));
    }
  }
  EXPECT_GE(count, 20);
}

}  // namespace
}  // namespace nibble::server
