#include "engine/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "engine/activity_log.h"
#include "engine/engine.h"
#include "engine/engine_testing.h"

namespace nibble {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::EndsWith;

TEST(Histogram, CountsAValueAtTheBoundBelowIt) {
  constexpr double kBounds[] = {1, 2, 5};
  Histogram h(kBounds);
  for (double x : {0.5, 1.0, 1.5, 5.0, 5.5, 100.0}) h.add(x);
  std::vector<int64_t> counts;
  for (size_t i = 0; i <= h.bounds().size(); ++i) counts.push_back(h.count_in(i));
  EXPECT_THAT(counts, ElementsAre(2, 1, 1, 2));
  EXPECT_EQ(h.count(), 6);
  EXPECT_DOUBLE_EQ(h.sum(), 113.5);
}

TEST(EngineMetrics, TimesOfARequest) {
  EngineMetrics metrics;
  RequestTimes times;
  const SteadyTime t0 = SteadyTime{} + milliseconds(1000);
  times.submitted = t0;
  times.started = t0 + milliseconds(200);
  metrics.on_token(times, t0 + milliseconds(500));
  metrics.on_token(times, t0 + milliseconds(600));
  metrics.on_token(times, t0 + milliseconds(800));
  metrics.on_end(times, FinishReason::kLength, 10, 3, t0 + milliseconds(900));
  EXPECT_NEAR(metrics.time_to_first_token_s.sum(), 0.5, 1e-9);
  EXPECT_EQ(metrics.inter_token_latency_s.count(), 2);
  EXPECT_NEAR(metrics.inter_token_latency_s.sum(), 0.3, 1e-9);
  EXPECT_NEAR(metrics.request_queue_time_s.sum(), 0.2, 1e-9);
  EXPECT_NEAR(metrics.request_prefill_time_s.sum(), 0.3, 1e-9);
  EXPECT_NEAR(metrics.request_decode_time_s.sum(), 0.3, 1e-9);
  EXPECT_NEAR(metrics.request_inference_time_s.sum(), 0.7, 1e-9);
  EXPECT_NEAR(metrics.e2e_request_latency_s.sum(), 0.9, 1e-9);
  EXPECT_EQ(metrics.request_prompt_tokens.sum(), 10);
  EXPECT_EQ(metrics.request_generation_tokens.sum(), 3);

  metrics.on_end({}, FinishReason::kCanceled, 10, 0, t0);  // never started
  EXPECT_EQ(metrics.e2e_request_latency_s.count(), 1);
  EXPECT_EQ(metrics.ended(FinishReason::kLength), 1);
  EXPECT_EQ(metrics.ended(FinishReason::kCanceled), 1);
}

TEST(EngineMetrics, RetryAfterFollowsThePaceOfEnds) {
  EngineMetrics metrics;
  EXPECT_EQ(metrics.retry_after_s(40), 1);  // nothing is known yet
  SteadyTime now = SteadyTime{} + std::chrono::hours(1);
  for (int i = 0; i < 100; ++i, now += milliseconds(500)) {
    metrics.on_end({}, FinishReason::kStop, 1, 1, now);
  }
  EXPECT_EQ(metrics.retry_after_s(40), 5);  // ten ends, half a second each
  EXPECT_EQ(metrics.retry_after_s(0), 1);
  EXPECT_EQ(metrics.retry_after_s(100'000), 60);
}

TEST(EngineMetrics, EveryRequestAndStepIsCounted) {
  ToyModel model;
  Engine engine(model, {}, toy_options());
  std::vector<Request> requests;
  for (int32_t i = 0; i < 5; ++i) {
    requests.push_back({.prompt = toy_prompt(10 + i, i), .max_tokens = 4 + i});
  }
  requests.push_back({.prompt = toy_prompt(8, 9), .prompt_logprobs = 0});  // gives no token
  run_all(engine, requests);
  const Result<RequestId> canceled = engine.submit(
      {.prompt = toy_prompt(3, 1), .max_tokens = 3, .on_output = [](const Output&) {}});
  engine.cancel(*canceled);
  engine.step();

  const EngineStats stats = engine.stats();
  const EngineMetrics& m = stats.metrics;
  EXPECT_EQ(m.ended(FinishReason::kLength), 6);
  EXPECT_EQ(m.ended(FinishReason::kCanceled), 1);
  EXPECT_EQ(m.time_to_first_token_s.count(), 5);
  EXPECT_EQ(m.inter_token_latency_s.count(), (4 + 5 + 6 + 7 + 8) - 5);
  EXPECT_EQ(m.request_generation_tokens.sum(), stats.generation_tokens);
  EXPECT_EQ(m.request_prompt_tokens.sum(), 10 + 11 + 12 + 13 + 14);
  EXPECT_EQ(m.request_params_max_tokens.sum(), 30 + 3);
  EXPECT_EQ(m.request_params_n.count(), 7);
  EXPECT_EQ(m.iteration_tokens.count(), stats.num_steps);
  // Every input: prompts, and all outputs but the last of each request.
  EXPECT_EQ(m.iteration_tokens.sum(), stats.prompt_tokens + stats.generation_tokens - 5);
}

TEST(ActivityLog, HasTheIntervalThatTheEnvironmentSays) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  setenv("NIBBLE_LOG_STATS_INTERVAL", "0.5", 1);
  ActivityLog log;
  for (int step = 0; step <= 10; ++step)
    log.after_step({}, SteadyTime{} + std::chrono::hours(1) + step * milliseconds(100));
  EXPECT_EQ(lines.size(), 2u);
  set_log_sink({});
  for (const char* bad : {"", "soon", "1s", "0", "-1", "nan", "inf", "1e99"}) {
    setenv("NIBBLE_LOG_STATS_INTERVAL", bad, 1);
    EXPECT_THROW(ActivityLog(), Error) << bad;
  }
  unsetenv("NIBBLE_LOG_STATS_INTERVAL");
}

TEST(ActivityLog, OneLineEveryTenSecondsWhileBusy) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  ActivityLog log;
  EngineStats stats;
  SteadyTime now = SteadyTime{} + std::chrono::hours(1);
  for (int step = 0; step <= 100; ++step, now += milliseconds(100)) {  // ten seconds
    log.after_step(stats, now);
    stats.prompt_tokens += 30;
    stats.generation_tokens += 2;
    stats.prefix_cache_queries += 100;
    stats.prefix_cache_hits += 25;
    stats.num_running = 3;
    stats.num_waiting = 40;
    stats.kv_usage = 0.5;
    stats.num_preemptions = 7;
  }
  EXPECT_THAT(lines, ElementsAre("prompt 300.0 tokens/s, generation 20.0 tokens/s, running 3, "
                                 "waiting 40, KV cache 50.0%, prefix-cache hits 25.0%, "
                                 "preemptions 7"));
  now += std::chrono::minutes(5);  // idle
  log.after_step(stats, now);
  log.after_step(stats, now + std::chrono::seconds(9));
  EXPECT_EQ(lines.size(), 1u);
  log.after_step(stats, now + std::chrono::seconds(10));
  EXPECT_EQ(lines.size(), 2u);
  set_log_sink({});
}

// Of the drafts since the line before.
TEST(ActivityLog, SaysHowManyDraftsCameTrue) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  ActivityLog log;
  EngineStats stats;
  stats.speculation = {.num_places = 3};
  SteadyTime now = SteadyTime{} + std::chrono::hours(1);
  for (int step = 0; step <= 200; ++step, now += milliseconds(100)) {
    log.after_step(stats, now);
    stats.speculation.num_drafts += 2, stats.speculation.num_draft_tokens += 6;
    stats.speculation.num_accepted_tokens += step < 100 ? 3 : 0;
  }
  EXPECT_THAT(
      lines,
      ElementsAre(EndsWith(", Mean acceptance length 2.50, 300 of 600 drafted tokens accepted"),
                  EndsWith(", Mean acceptance length 1.00, 0 of 600 drafted tokens accepted")));
  set_log_sink({});
}

}  // namespace
}  // namespace nibble
