// The requests of tests/data/client_requests.jsonl, shaped as named clients send them: each gets
// its status, and answers that hold what they must.
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

}  // namespace
}  // namespace nibble::server
