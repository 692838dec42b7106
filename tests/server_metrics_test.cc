// /metrics and /load: what is counted, under which names.
#include <map>

#include "server_testing.h"

namespace nibble::server {
namespace {

using ::testing::HasSubstr;

// The value of a series by its name and labels as they stand.
double value_of(const std::string& page, const std::string& series) {
  const size_t at = page.find("\n" + series + " ");
  EXPECT_NE(at, std::string::npos) << series;
  return at == std::string::npos ? -1 : std::stod(page.substr(at + series.size() + 2));
}

TEST_F(ServerTest, CountsForPrometheus) {
  serve();
  const std::string before = ask("GET", "/metrics").body;
  const json reply = chat(kParis);
  chat(with(kParis, {{"max_tokens", 3}, {"n", 2}, {"stream", false}}));
  EXPECT_EQ(ask("GET", "/strange/path").status, 404);
  // The engine tells of a step once it is over, which may be after the client has its answer.
  Answer answer;
  const std::string cut =
      "vllm:request_success_total{model_name=\"tiny\",finished_reason=\"length\"}";
  EXPECT_TRUE(eventually([&] {
    answer = ask("GET", "/metrics");
    return value_of(answer.body, cut) == value_of(before, cut) + 2;
  }));
  EXPECT_THAT(answer.head, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  const std::string& page = answer.body;
  const std::string label = "{model_name=\"tiny\"}";
  for (const std::string prefix : {"nibble_", "vllm:"}) {
    const auto grown = [&](const std::string& series) {
      return value_of(page, prefix + series) - value_of(before, prefix + series);
    };
    const double generated = reply["usage"]["completion_tokens"].get<double>() + 6;
    EXPECT_EQ(grown("generation_tokens_total" + label), generated);
    EXPECT_EQ(grown("request_success_total{model_name=\"tiny\",finished_reason=\"stop\"}"), 1);
    EXPECT_EQ(grown("request_success_total{model_name=\"tiny\",finished_reason=\"length\"}"), 2);
    EXPECT_EQ(grown("time_to_first_token_seconds_count" + label), 3);
    EXPECT_EQ(grown("inter_token_latency_seconds_count" + label), generated - 3);
    EXPECT_EQ(grown("request_generation_tokens_bucket{model_name=\"tiny\",le=\"5\"}"), 2);
    EXPECT_EQ(grown("request_generation_tokens_sum" + label), generated);
    EXPECT_EQ(grown("e2e_request_latency_seconds_bucket{model_name=\"tiny\",le=\"+Inf\"}"), 3);
    EXPECT_GT(grown("prefix_cache_queries_total" + label), 0);
    EXPECT_EQ(value_of(page, prefix + "num_requests_running" + label), 0);
    EXPECT_EQ(value_of(page, prefix + "num_requests_waiting" + label), 0);
    EXPECT_GE(value_of(page, prefix + "kv_cache_usage_perc" + label), 0);
    value_of(page, prefix + "num_preemptions_total" + label);
  }
  const std::string chats =
      "http_requests_total{handler=\"/v1/chat/completions\",method=\"POST\",status=\"200\"}";
  EXPECT_EQ(value_of(page, chats), 2);
  EXPECT_EQ(
      value_of(page, "http_requests_total{handler=\"other\",method=\"other\",status=\"404\"}"), 1);
  EXPECT_GT(value_of(page, "process_resident_memory_bytes"), 1e6);
  EXPECT_GT(value_of(page, "process_open_fds"), 3);
  EXPECT_EQ(page.find("/strange"), std::string::npos);  // labels are of a fixed set
}

// What `promtool check metrics` asks of names, but for those that are vLLM's.
TEST_F(ServerTest, NamesItsMetricsByPrometheusRules) {
  serve();
  chat(with(kParis, {{"max_tokens", 2}}));
  std::istringstream lines(ask("GET", "/metrics").body);
  std::map<std::string, std::string> types;
  std::string name, helped;
  for (std::string line, mark, word, text; std::getline(lines, line);) {
    std::istringstream words(line);
    words >> mark >> word >> name >> text;
    if (word == "HELP") {
      helped = name;
      EXPECT_FALSE(text.empty()) << line;
    } else if (word == "TYPE") {
      EXPECT_EQ(helped, name);
      EXPECT_TRUE(types.emplace(name, text).second) << name << " twice";
    } else {  // a sample belongs to the family above it
      EXPECT_TRUE(line.starts_with(types.rbegin()->first) || line.starts_with(helped)) << line;
    }
    word.clear();
  }
  EXPECT_GT(types.size(), 50u);
  EXPECT_EQ(types.at("nibble_iteration_tokens"), "histogram");
  EXPECT_EQ(types.at("vllm:iteration_tokens_total"), "histogram");  // as vLLM has it
  for (const auto& [full, type] : types) {
    if (full.starts_with("vllm:")) continue;
    EXPECT_EQ(full.ends_with("_total"), type == "counter") << full;
    EXPECT_EQ(full.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_"), std::string::npos);
    for (const char* end :
         {"_count", "_sum", "_bucket", "_milliseconds", "_ms", "_kb", "_percent"}) {
      EXPECT_FALSE(full.ends_with(end)) << full;
    }
  }
}

TEST_F(ServerTest, TellsItsLoad) {
  serve();
  EXPECT_EQ(ask("GET", "/load").parsed()["server_load"], 0);
  RawClient client(server_->port());
  client.send_bytes(request("POST", "/v1/completions", with(kEndless, {{"stream", true}}).dump()));
  client.read_until("data: ");
  const json load = ask("GET", "/load").parsed();
  EXPECT_EQ(load["server_load"], 1);
  EXPECT_EQ(load["requests_running"], 1);
  EXPECT_GT(load["kv_cache_usage"], 0);
  client.hang_up();
  EXPECT_TRUE(eventually([this] { return ask("GET", "/load").parsed()["server_load"] == 0; }));
  EXPECT_THAT(ask("GET", "/metrics").body, HasSubstr("\nnibble_clients_left_total 1\n"));
}

TEST_F(ServerTest, SharesPrefixesWithinASaltOnly) {
  serve();
  const auto cached = [this](const std::string& salt) {
    const json reply = chat(with(kParis, {{"cache_salt", salt}, {"max_tokens", 1}}));
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
  };
  EXPECT_EQ(cached("a tenant"), 0);
  EXPECT_GT(cached("a tenant"), 0);
  EXPECT_EQ(cached("another tenant"), 0);
}

TEST_F(ServerTest, AsksForTheKeyEverywhereButForHealth) {
  options_.access.api_keys = {"secret"};
  serve();
  for (const char* path : {"/metrics", "/load", "/version", "/v1/models"}) {
    EXPECT_EQ(ask("GET", path).status, 401) << path;
    EXPECT_EQ(ask("GET", path, "", "Authorization: Bearer secret\r\n").status, 200) << path;
    EXPECT_EQ(ask("GET", path, "", "X-Api-Key: secret\r\n").status, 200) << path;
    EXPECT_EQ(ask("GET", path, "", "X-Api-Key: secre\r\n").status, 401) << path;
  }
  for (const char* path : {"/health", "/ping", "/"})
    EXPECT_EQ(ask("GET", path).status, 200) << path;
}

}  // namespace
}  // namespace nibble::server
