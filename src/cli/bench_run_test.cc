#include "cli/bench_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/run_for_test.h"
#include "engine/toy_model.h"

namespace nibble::cli {
namespace {

Engine toy_engine(ToyModel& model, int32_t max_model_len) {
  EngineOptions options{.max_num_seqs = 4,
                        .max_num_batched_tokens = 16,
                        .max_model_len = max_model_len,
                        .kv_dtype = DType::kF32};
  options.kv_bytes = Engine::kv_bytes_for(model.info(), options, max_model_len, 4);
  return Engine(model, {}, options);
}

TEST(BenchRun, CasesAreThoseOfLlamaBench) {
  std::vector<std::string> tests;
  for (const BenchCase& c : bench_cases({512, 0}, {128}, {0, 4096}, {1, 8}))
    tests.push_back(c.test());
  EXPECT_THAT(tests, testing::ElementsAre("pp512", "tg 1", "tg 8", "pp512 @4096", "tg 1 @4096",
                                          "tg 8 @4096"));
  EXPECT_TRUE(bench_cases({0}, {0}, {0}, {1}).empty());
  for (const std::string test : {"pp512", "pp64 @4096", "tg 8", "tg 1 @512", "tg 1"})
    EXPECT_EQ(parse_bench_case(test, 128).test(), test);
  EXPECT_EQ(parse_bench_case("tg 8", 128).prompt, 128);
  EXPECT_EQ(parse_bench_case("tg 8", 100).new_tokens, 100);
  for (const std::string test : {"pp", "pp0", "tg 8 @", "512", "tg 8 @512 ", "pp99999999"})
    EXPECT_THROW(parse_bench_case(test, 128), Error) << test;
}

TEST(BenchRun, PromptStepsAreCountedInChunks) {
  ToyModel model;
  Engine engine = toy_engine(model, 128);
  const BenchSample sample = run_case(engine, {.prompt = 40}, 1);
  EXPECT_EQ(sample.tokens, 40);
  EXPECT_EQ(sample.steps, 3);  // 16 + 16 + 8
  EXPECT_EQ(sample.mean_context, 20);
}

TEST(BenchRun, WhatIsInTheContextBeforeIsNotTimed) {
  ToyModel model;
  Engine engine = toy_engine(model, 128);
  const BenchSample prompt = run_case(engine, {.prompt = 32, .depth = 32}, 1);
  EXPECT_EQ(prompt.tokens, 32);
  EXPECT_EQ(prompt.steps, 2);
  const BenchSample decode = run_case(engine, {.prompt = 0, .new_tokens = 10, .depth = 32}, 1);
  EXPECT_EQ(decode.tokens, 10);
  EXPECT_EQ(decode.mean_context, 37);
}

TEST(BenchRun, AllStreamsDecodeInEveryTimedStep) {
  ToyModel model;
  const BenchCase four{.prompt = 20, .new_tokens = 12, .streams = 4};
  Engine engine = toy_engine(model, four.sequence_length(16));
  const BenchSample sample = run_case(engine, four, 1);
  EXPECT_EQ(sample.steps, 12);
  EXPECT_EQ(sample.tokens, 48);
  EXPECT_EQ(engine.stats().num_running, 0);  // ready for the next case
}

TEST(BenchRun, RefusesWhatDoesNotFit) {
  ToyModel model;
  Engine engine = toy_engine(model, 32);
  EXPECT_THROW(run_case(engine, {.prompt = 40}, 1), Error);
  EXPECT_THROW(run_case(engine, {.prompt = 1, .new_tokens = 40}, 1), Error);
  EXPECT_THROW(run_case(engine, {.prompt = 8, .depth = 8}, 1), Error);  // both in one chunk of 16
}

TEST(BenchRun, StepsThatTheContextDoesNotHoldAreNotCounted) {
  ToyModel model;
  Engine engine = toy_engine(model, 32);
  const BenchCase two{.prompt = 8, .new_tokens = 4, .streams = 2};
  int steps = 0;
  run_decode_steps(engine, two, 20, [&] { ++steps; });
  EXPECT_EQ(steps, 20);
  EXPECT_THROW(run_decode_steps(engine, two, 30, [&] { ++steps; }), Error);
  EXPECT_LT(steps, 20 + 30);
}

// A prompt of its own that is longer than what warms up.
TEST(BenchRun, DecodesFromALongPrompt) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "long_prompt.ids";
  std::ofstream out(file);
  for (int32_t i = 0; i < 700; ++i) out << i % 100 << ' ';
  out.close();
  const CommandResult run =
      run_command({"bench", std::string(NIBBLE_SOURCE_DIR) + "/models/nibble-tiny-gpt-oss", "-p",
                   "0", "-n", "4", "-r", "1", "--ids-file", file, "--json"});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(nlohmann::json::parse(run.out)["rows"][0]["prompt"], 700);
}

TEST(BenchRun, RateIsMeanAndSampleDeviation) {
  const BenchRate rate = rate_of({{.seconds = 1, .tokens = 10}, {.seconds = 2, .tokens = 24}});
  EXPECT_DOUBLE_EQ(rate.mean, 11);
  EXPECT_DOUBLE_EQ(rate.deviation, std::sqrt(2.0));  // 10 and 12
  EXPECT_EQ(rate_of({{.seconds = 2, .tokens = 24}}).deviation, 0);
}

}  // namespace
}  // namespace nibble::cli
