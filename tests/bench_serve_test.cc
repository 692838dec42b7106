// Load on our own server: every request is answered, counted and timed; errors are told apart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "cli/load_run.h"
#include "cli/sse_reader.h"
#include "server_testing.h"

namespace nibble::server {
namespace {

using cli::LoadPlan;
using cli::LoadSummary;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class BenchServe : public ServerTest {
 protected:
  LoadPlan plan() {
    LoadPlan plan{.model = "tiny", .requests = 12, .concurrency = 3, .prompt_words = 20};
    plan.target = cli::parse_target("http://127.0.0.1:" + std::to_string(server_->port()) + "/v1/");
    plan.new_tokens = 9;
    return plan;
  }
  // The last answers are out before the engine's counters say so.
  static EngineStats idle_stats() {
    EXPECT_TRUE(eventually([] { return Shipped::get().engine().stats().num_running == 0; }));
    return Shipped::get().engine().stats();
  }
  static LoadSummary run(const LoadPlan& plan, const cli::Goal& goal = {}) {
    return cli::summarize(cli::run_load(plan), goal);
  }
};

TEST_F(BenchServe, ClosedLoopCountsWhatTheServerCounts) {
  serve();
  for (const bool chat : {true, false}) {
    LoadPlan p = plan();
    p.chat = chat;
    p.seed = chat ? 1 : 2;
    const EngineStats before = idle_stats();
    const LoadSummary s = run(p);
    const EngineStats after = idle_stats();
    EXPECT_EQ(s.ok, 12) << s.first_error;
    EXPECT_EQ(s.failed + s.rejected, 0);
    EXPECT_TRUE(s.counted_by_server);
    EXPECT_EQ(s.new_tokens, 12 * 9);
    EXPECT_EQ(s.new_tokens, after.generation_tokens - before.generation_tokens);
    EXPECT_EQ(s.prompt_tokens, after.prefix_cache_queries - before.prefix_cache_queries);
    EXPECT_EQ(s.cached_tokens, after.prefix_cache_hits - before.prefix_cache_hits);
    EXPECT_EQ(s.e2e_ms.size(), 12u);
    // No order but this one is certain: a first token comes before the end.
    for (size_t i = 0; i < s.ttft_ms.size(); ++i) EXPECT_LE(s.ttft_ms[i], s.e2e_ms[i]);
  }
}

TEST_F(BenchServe, OpenLoopSendsAllAndSharedWordsHit) {
  serve();
  LoadPlan p = plan();
  p.rate = 200;
  p.prompt_words = 100;
  p.shared_words = 80;
  p.seed = 5;
  const LoadSummary s = run(p, {.e2e_ms = 3'600'000});
  EXPECT_EQ(s.ok, 12) << s.first_error;
  EXPECT_EQ(s.good, 12);
  EXPECT_GT(s.cached_tokens, 0);
  EXPECT_EQ(run(p, {.e2e_ms = 1e-6}).good, 0);
}

TEST_F(BenchServe, TellsRejectionFromFailure) {
  options_.max_num_seqs = 1;
  options_.max_queued_requests = 0;
  serve();
  LoadPlan p = plan();
  p.rate = 1e6;  // all at once
  p.new_tokens = 200;
  const LoadSummary busy = run(p);
  EXPECT_GE(busy.ok, 1);
  EXPECT_GE(busy.rejected, 1);
  EXPECT_EQ(busy.failed, 0) << busy.first_error;

  p.rate = 0;
  p.concurrency = 1;
  p.model = "no-such-model";
  const LoadSummary wrong = run(p);
  EXPECT_EQ(wrong.failed, 12);
  EXPECT_THAT(wrong.first_error, HasSubstr("no-such-model"));
  EXPECT_EQ(cli::first_model(p.target), "tiny");

  p.target.port = "1";
  EXPECT_EQ(run(p).failed, 12);
}

TEST(LoadRun, PercentilesAreNumPys) {
  EXPECT_DOUBLE_EQ(cli::percentile({3, 1, 2}, 50), 2);
  EXPECT_DOUBLE_EQ(cli::percentile({10, 20}, 90), 19);
  EXPECT_DOUBLE_EQ(cli::percentile({7}, 99), 7);
  EXPECT_TRUE(std::isnan(cli::percentile({}, 50)));
}

TEST(LoadRun, SummaryOfKnownTimes) {
  cli::LoadResult result{.exchanges = {}, .seconds = 2};
  result.exchanges = {{.chunks_s = {0.1, 0.2, 0.4},
                       .end_s = 0.5,
                       .status = 200,
                       .has_usage = true,
                       .prompt_tokens = 10,
                       .cached_tokens = 4,
                       .new_tokens = 4},
                      {.chunks_s = {0.3},
                       .end_s = 0.3,
                       .status = 200,
                       .has_usage = true,
                       .prompt_tokens = 5,
                       .new_tokens = 1},
                      {.end_s = 0.01, .status = 429, .error = "full"},
                      {.end_s = 0.01, .status = 0, .error = "refused"}};
  const LoadSummary s = cli::summarize(result, {.ttft_ms = 200, .tpot_ms = 100.1});
  EXPECT_EQ(s.ok, 2);
  EXPECT_EQ(s.rejected, 1);
  EXPECT_EQ(s.failed, 1);
  EXPECT_EQ(s.first_error, "refused");
  EXPECT_EQ(s.good, 1);
  EXPECT_EQ(s.new_tokens, 5);
  EXPECT_THAT(s.tpot_ms, ElementsAre(::testing::DoubleNear(100, 1e-9)));
  EXPECT_THAT(s.itl_ms,
              ElementsAre(::testing::DoubleNear(100, 1e-9), ::testing::DoubleNear(200, 1e-9)));
}

TEST(LoadRun, BodiesRepeatAndShareTheirBeginning) {
  LoadPlan plan{.model = "m", .prompt_words = 30, .shared_words = 20};
  EXPECT_EQ(cli::request_body(plan, 3), cli::request_body(plan, 3));
  const auto text = [&](int64_t i) {
    return json::parse(cli::request_body(plan, i))["messages"][0]["content"].get<std::string>();
  };
  const std::string a = text(1), b = text(2);
  const auto same = std::ranges::mismatch(a, b).in1 - a.begin();
  EXPECT_GE(std::count(a.begin(), a.begin() + same, ' '), 20);
  EXPECT_NE(a, b);
  EXPECT_EQ(std::count(a.begin(), a.end(), ' '), 29);
}

TEST(LoadRun, TargetsAndGoals) {
  const cli::LoadTarget t = cli::parse_target("http://[::1]:8080/v1/");
  EXPECT_EQ(t.host, "::1");
  EXPECT_EQ(t.port, "8080");
  EXPECT_EQ(t.prefix, "/v1");
  EXPECT_EQ(cli::parse_target("http://example").port, "80");
  for (const char* bad : {"https://x/v1", "x:80", "http://:80", "http://x:y", "http://x:"}) {
    EXPECT_THROW(cli::parse_target(bad), Error) << bad;
  }
  EXPECT_EQ(*cli::parse_goal("ttft:500,e2e:2e3").e2e_ms, 2000);
  for (const char* bad : {"ttft", "ttft:", "ttft:x", "ttft:-1", "ttft:1x", "x:1", "ttft:nan"}) {
    EXPECT_THROW(cli::parse_goal(bad), Error) << bad;
  }
}

TEST(SseReader, EventsInAnyPiecesAndLineEnds) {
  const std::string bytes =
      ": hi\r\ndata: a\r\n\r\nevent: x\ndata: b\ndata:c\n\ndata: d\r\rdata: e\n";
  for (size_t step = 1; step <= bytes.size(); ++step) {
    std::vector<std::string> events;
    cli::SseReader reader;
    for (size_t at = 0; at < bytes.size(); at += step) {
      EXPECT_TRUE(reader.feed(std::string_view(bytes).substr(at, step),
                              [&](std::string_view event) { events.emplace_back(event); }));
    }
    EXPECT_THAT(events, ElementsAre("a", "b\nc", "d"));
  }
  cli::SseReader reader;
  EXPECT_FALSE(
      reader.feed(std::string(cli::SseReader::kMaxEventBytes + 1, 'x'), [](std::string_view) {}));
}

TEST(SseReader, ChunksOfEveryKind) {
  EXPECT_TRUE(cli::read_chunk(R"({"choices":[{"delta":{"content":"x"}}]})").has_text);
  EXPECT_TRUE(cli::read_chunk(R"({"choices":[{"delta":{"reasoning":"x"}}]})").has_text);
  EXPECT_TRUE(cli::read_chunk(R"({"choices":[{"delta":{"tool_calls":[{}]}}]})").has_text);
  EXPECT_TRUE(cli::read_chunk(R"({"choices":[{"text":"x"}]})").has_text);
  EXPECT_FALSE(
      cli::read_chunk(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})").has_text);
  EXPECT_FALSE(cli::read_chunk(R"({"error":{"message":"no"}})").is_valid);
  EXPECT_FALSE(cli::read_chunk("[1").is_valid);
  EXPECT_FALSE(cli::read_chunk(R"({"choices":{"a":3},"usage":7})").has_usage);
}

}  // namespace
}  // namespace nibble::server
