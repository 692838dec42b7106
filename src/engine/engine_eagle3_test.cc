// The head that ships for the model that ships: its drafts change no text, however requests meet,
// and many of them come true.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cpu/thread_pool.h"
#include "engine/engine.h"
#include "engine/engine_testing.h"
#include "models/draft_head.h"
#include "models/model.h"

namespace nibble {
namespace {

const std::string kSource = NIBBLE_SOURCE_DIR;
const std::string kModel = kSource + "/models/nibble-tiny-gpt-oss";
const std::string kHead = kSource + "/models/nibble-tiny-gpt-oss-eagle3";

// As --exact has it.
struct Loaded {
  Loaded() {
    cx.pool = &pool;
    cx.kernels.activations = ops::ActFormat::kBF16;
    cx.activations = DType::kBF16;
    model = load_model(cx, kModel, {});
    head = load_draft_head(cx, {kHead}, *model, {});
  }
  EngineOptions drafts(EngineOptions options, int32_t k, bool is_adaptive = false) const {
    options.speculation = {.method = SpeculationOptions::Method::kHead,
                           .num_tokens = k,
                           .is_adaptive = is_adaptive,
                           .head_group = head->model().info().groups[0],
                           .head = head};
    return options;
  }

  cpu::ThreadPool pool{2};
  ops::Ctx cx;
  std::unique_ptr<Model> model;
  std::shared_ptr<DraftHead> head;
};

EngineOptions options_of(int32_t max_tokens = 96) {
  return {.max_num_seqs = 8,
          .max_num_batched_tokens = max_tokens,
          .max_model_len = 1024,
          .kv_bytes = int64_t{256} << 20};
}

// Of held-out items of different tasks.
std::vector<Request> requests_of(int32_t num, uint64_t seed, bool is_greedy) {
  std::ifstream file(kSource + "/tests/goldens/nibble_tiny.json");
  const nlohmann::json answers = nlohmann::json::parse(file).at("answers");
  std::vector<Request> requests;
  for (int32_t i = 0; i < num; ++i) {
    const nlohmann::json& answer = answers.at((i * 7) % answers.size());
    Request r{.prompt = answer.at("prompt").get<std::vector<int32_t>>(), .max_tokens = 40 - 3 * i};
    r.sampling = {.temperature = is_greedy ? 0 : 0.5f + 0.25f * static_cast<float>(i % 4),
                  .seed = seed + i,
                  .logprobs = i % 3};
    if (!is_greedy && i % 3 == 2) r.sampling.top_p = 0.9f, r.sampling.repetition_penalty = 1.1f;
    requests.push_back(r);
  }
  return requests;
}

std::vector<Transcript> run(Loaded& loaded, const EngineOptions& options,
                            const std::vector<Request>& requests) {
  Engine engine(*loaded.model, loaded.cx, options);
  return run_all(engine, requests);
}

TEST(Eagle3, SameTextForEveryNumberOfDrafts) {
  Loaded loaded;
  for (const bool is_greedy : {true, false}) {
    const std::vector<Request> requests = requests_of(4, is_greedy ? 1 : 77, is_greedy);
    const std::vector<Transcript> expected = run(loaded, options_of(), requests);
    for (int32_t k = 1; k <= 7; ++k) {
      // Prompts in other chunks, beside decodes with drafts.
      Engine engine(*loaded.model, loaded.cx, loaded.drafts(options_of(96 - 9 * k), k));
      EXPECT_TRUE(run_all(engine, requests) == expected) << "k " << k;
      EXPECT_TRUE(run_all(engine, requests) == expected) << "after prefix hits, k " << k;
      EXPECT_GT(engine.stats().prefix_cache_hits, 0);
      EXPECT_GT(engine.stats().speculation.num_accepted_tokens, 0);
      EXPECT_EQ(engine.stats().kv_usage, 0);
    }
  }
}

// As many drafts as there may be, which with their token are more than the windows of 32 positions.
TEST(Eagle3, SameTextForDraftsLongerThanAWindow) {
  Loaded loaded;
  const std::vector<Request> requests = requests_of(4, 5, false);
  const std::vector<Transcript> expected = run(loaded, options_of(), requests);
  EngineOptions by_text = options_of();
  by_text.speculation = {.method = SpeculationOptions::Method::kNgram,
                         .num_tokens = kMaxDrafts,
                         .is_adaptive = false,
                         .ngram_min = 1,
                         .ngram_max = 4};
  for (const EngineOptions& options : {loaded.drafts(options_of(64), kMaxDrafts), by_text}) {
    Engine engine(*loaded.model, loaded.cx, options);
    EXPECT_TRUE(run_all(engine, requests) == expected);
    EXPECT_TRUE(run_all(engine, requests) == expected) << "after prefix hits";
    EXPECT_GT(engine.stats().speculation.num_accepted_tokens, 0);
  }
}

TEST(Eagle3, SameTextAtSeveralTemperaturesAndSeeds) {
  Loaded loaded;
  for (const uint64_t seed : {5, 300, 9001}) {
    const std::vector<Request> requests = requests_of(4, seed, false);
    const std::vector<Transcript> expected = run(loaded, options_of(), requests);
    EXPECT_TRUE(run(loaded, loaded.drafts(options_of(), 3), requests) == expected) << seed;
    EXPECT_TRUE(run(loaded, loaded.drafts(options_of(), 4, true), requests) == expected) << seed;
    EngineOptions drawn = loaded.drafts(options_of(), 3);
    drawn.speculation.draws_drafts = true;
    EXPECT_TRUE(run(loaded, drawn, requests) == expected) << "drawn drafts, " << seed;
  }
}

TEST(Eagle3, SameTextAfterPreemptionAndInForks) {
  Loaded loaded;
  const std::vector<Request> requests = requests_of(8, 40, true);
  const std::vector<Transcript> expected = run(loaded, options_of(), requests);
  EngineOptions tight = loaded.drafts(options_of(), 3);
  tight.max_model_len = 512;
  tight.kv_bytes = Engine::kv_bytes_for(loaded.model->info(), tight, 512, 1);
  Engine engine(*loaded.model, loaded.cx, tight);
  EXPECT_TRUE(run_all(engine, requests) == expected);
  EXPECT_GE(engine.stats().num_preemptions, 1);

  std::vector<Request> forks(3, requests[1]);
  for (size_t i = 0; i < forks.size(); ++i)
    forks[i].sampling = {.temperature = 1.0f, .seed = 90 + i};
  Engine drafts(*loaded.model, loaded.cx, loaded.drafts(options_of(), 3));
  const std::vector<Transcript> answers = run_forks(drafts, forks);
  for (size_t i = 0; i < forks.size(); ++i)
    EXPECT_TRUE(answers[i] == run_alone(*loaded.model, loaded.cx, options_of(), forks[i])) << i;
}

// Pages of a window that the prompt's chunk has left behind are given back by all of them.
TEST(Eagle3, ForksKeepNoMorePagesThanOneAlone) {
  Loaded loaded;
  Request request{.max_tokens = 8};
  for (const Request& r : requests_of(8, 1, true))
    request.prompt.insert(request.prompt.end(), r.prompt.begin(), r.prompt.end());
  request.prompt.resize(500);
  const auto usage = [&](size_t forks) {
    EngineOptions options = loaded.drafts(options_of(512), 3);
    options.kv_bytes = Engine::kv_bytes_for(loaded.model->info(), options, 1024, 8);
    Engine engine(*loaded.model, loaded.cx, options);
    std::vector<Request> requests(forks, request);
    for (Request& r : requests) record(r);
    EXPECT_TRUE(engine.submit_forks(std::move(requests)).ok());
    EXPECT_TRUE(engine.step());
    EXPECT_EQ(engine.stats().num_running, forks);
    return engine.stats().kv_usage;
  };
  EXPECT_EQ(usage(4), usage(1));
}

// A third of what its README says of a thousand items, so that a head that is fed the wrong rows
// fails, and one that is trained again does not. After prefix hits it is as good as before.
TEST(Eagle3, ManyDraftsComeTrue) {
  Loaded loaded;
  const std::vector<Request> requests = requests_of(12, 1, true);
  Engine engine(*loaded.model, loaded.cx, loaded.drafts(options_of(), 3));
  run_all(engine, requests);
  const SpeculationCounts first = engine.stats().speculation;
  EXPECT_GT(first.mean_acceptance_length(), 2.0);
  run_all(engine, requests);
  const SpeculationCounts again = engine.stats().speculation - first;
  EXPECT_EQ(again.num_accepted_tokens, first.num_accepted_tokens);
  EXPECT_EQ(again.num_draft_tokens, first.num_draft_tokens);
}

// Whoever goes on from an answer that was made without drafts is drafted for as behind one with
// them.
TEST(Eagle3, WhatItIsFedLateIsTheSame) {
  Loaded loaded;
  SpeculationCounts counts[2];
  int32_t cached[2] = {};
  for (const bool late : {false, true}) {
    Engine engine(*loaded.model, loaded.cx, loaded.drafts(options_of(), 3));
    std::vector<Request> requests = requests_of(4, 21, true);
    for (Request& r : requests) r.max_drafts = late ? 0 : r.max_drafts;
    const std::vector<Transcript> answers = run_all(engine, requests);
    const SpeculationCounts before = engine.stats().speculation;
    EXPECT_EQ(before.num_draft_tokens == 0, late);
    for (size_t i = 0; i < requests.size(); ++i) {
      Request& r = requests[i];
      r.prompt.insert(r.prompt.end(), answers[i].ids.begin(), answers[i].ids.end());
      r.max_tokens = 20, r.max_drafts = kMaxDrafts, r.sampling = {.temperature = 0};
    }
    for (const Transcript& t : run_all(engine, requests)) cached[late] += t.cached_tokens;
    counts[late] = engine.stats().speculation - before;
  }
  EXPECT_EQ(cached[0], cached[1]);
  EXPECT_GT(counts[1].num_accepted_tokens, 0);
  EXPECT_EQ(counts[0].num_accepted_tokens, counts[1].num_accepted_tokens);
  EXPECT_EQ(counts[0].num_draft_tokens, counts[1].num_draft_tokens);
}

}  // namespace
}  // namespace nibble
