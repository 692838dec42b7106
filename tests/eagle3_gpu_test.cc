// The head that ships on a GPU: drafts that never come to the host before they are verified, under
// --exact the same bits as without them, recorded or not, preempted or not.
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_testing.h"
#include "engine/gpu_test_model.h"
#include "models/draft_head.h"

namespace nibble {
namespace {

const std::string kSource = NIBBLE_SOURCE_DIR;

EngineOptions options_of() {
  return {.max_num_seqs = 16,
          .max_num_batched_tokens = 160,
          .max_model_len = 512,
          .kv_bytes = int64_t{64} << 20};
}

std::vector<Request> requests_of(int32_t num) {
  std::ifstream file(kSource + "/tests/goldens/nibble_tiny.json");
  const nlohmann::json answers = nlohmann::json::parse(file).at("answers");
  std::vector<Request> requests;
  for (int32_t i = 0; i < num; ++i) {
    const nlohmann::json& answer = answers.at((i * 7) % answers.size());
    Request r{.prompt = answer.at("prompt").get<std::vector<int32_t>>(), .max_tokens = 60 - 2 * i};
    r.sampling.seed = 7 + i;
    if (i % 4 == 1) r.sampling.logprobs = 3;
    if (i % 8 == 3) r.sampling.repetition_penalty = 1.2f;
    r.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    requests.push_back(r);
  }
  return requests;
}

// The model that ships with its head behind it.
struct Loaded {
  Loaded() : loaded(Format::kBF16, /*exact=*/true, kSource + "/models/nibble-tiny-gpt-oss") {
    const LoadOptions load{.memory = {.allocate = cuda::device_buffer,
                                      .allocate_staging = cuda::pinned_buffer,
                                      .copy = cuda::copy}};
    head = load_draft_head(loaded.cx, {kSource + "/models/nibble-tiny-gpt-oss-eagle3"},
                           *loaded.model, load);
  }
  EngineOptions drafts(int32_t k, bool is_adaptive = false) const {
    EngineOptions options = options_of();
    options.speculation = {.method = SpeculationOptions::Method::kHead,
                           .num_tokens = k,
                           .is_adaptive = is_adaptive,
                           .head_group = head->model().info().groups[0],
                           .head = head};
    return options;
  }
  GpuTestModel loaded;
  std::shared_ptr<DraftHead> head;
};

TEST(Eagle3Gpu, SameBitsForEveryNumberOfDrafts) {
  Loaded all;
  for (const int32_t num : {1, 16}) {
    const std::vector<Request> requests = requests_of(num);
    Engine plain(*all.loaded.model, all.loaded.cx, options_of());
    const std::vector<Transcript> expected = run_all(plain, requests);
    for (int32_t k = 1; k <= 7; ++k) {
      Engine engine(*all.loaded.model, all.loaded.cx, all.drafts(k));
      EXPECT_TRUE(run_all(engine, requests) == expected) << num << " sequences, k " << k;
      EXPECT_TRUE(run_all(engine, requests) == expected) << num << ", after prefix hits, k " << k;
      const SpeculationCounts& counts = engine.stats().speculation;
      // A head that is fed the wrong rows, or drafts at the wrong places, is right far more rarely.
      // One text alone may be hard to foretell.
      EXPECT_GT(counts.num_accepted_tokens, counts.num_drafts / (num == 1 ? 4 : 2))
          << num << ", k " << k;
      EXPECT_EQ(engine.stats().kv_usage, 0);
    }
  }
}

TEST(Eagle3Gpu, PreemptedEagerAndAdaptive) {
  Loaded all;
  const std::vector<Request> requests = requests_of(16);
  Engine plain(*all.loaded.model, all.loaded.cx, options_of());
  const std::vector<Transcript> expected = run_all(plain, requests);
  EngineOptions tight = all.drafts(3);
  tight.max_model_len = 384;
  tight.kv_bytes = Engine::kv_bytes_for(all.loaded.model->info(), tight, 384, 1);
  Engine small(*all.loaded.model, all.loaded.cx, tight);
  EXPECT_TRUE(run_all(small, requests) == expected);
  EXPECT_GE(small.stats().num_preemptions, 1);
  EngineOptions eager = all.drafts(3);
  eager.graphs = false;
  Engine without(*all.loaded.model, all.loaded.cx, eager);
  EXPECT_TRUE(run_all(without, requests) == expected);
  EngineOptions drawn = all.drafts(3);
  drawn.speculation.draws_drafts = true;
  Engine draws(*all.loaded.model, all.loaded.cx, drawn);
  EXPECT_TRUE(run_all(draws, requests) == expected);
  Engine adaptive(*all.loaded.model, all.loaded.cx, all.drafts(5, true));
  EXPECT_TRUE(run_all(adaptive, requests) == expected);
}

// Whoever goes on from an answer that was made without drafts, by steps that were begun ahead, is
// drafted for as behind one with them.
TEST(Eagle3Gpu, WhatItIsFedLateIsTheSame) {
  Loaded all;
  SpeculationCounts counts[2];
  int32_t cached[2] = {};
  for (const bool late : {false, true}) {
    Engine engine(*all.loaded.model, all.loaded.cx, all.drafts(3));
    std::vector<Request> requests = requests_of(16);
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
