// Drafts on a GPU, under --exact: the same bits as without, beside steps that are begun ahead.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "engine/engine.h"
#include "engine/engine_testing.h"
#include "engine/gpu_test_model.h"
#include "engine/speculation_testing.h"

namespace nibble {
namespace {

EngineOptions engine_options() {
  return {.max_num_seqs = 16,
          .max_num_batched_tokens = 160,
          .max_model_len = 512,
          .kv_bytes = int64_t{64} << 20};
}

// Greedy ones and drawn ones, of both some whose logits come to the host.
std::vector<Request> requests_for(int32_t num) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < num; ++i) {
    Request r{.prompt = toy_prompt(1 + i * 11, i, 3072), .max_tokens = 40 - i};
    r.sampling.seed = 7 + i;
    if (i % 4 == 1) r.sampling.logprobs = 3;
    if (i % 8 == 3) r.sampling.repetition_penalty = 1.2f;
    if (i % 2 == 0) r.sampling.temperature = 0;
    requests.push_back(r);
  }
  return requests;
}

TEST(SpeculationGpu, SameBitsForEveryCountOfDrafts) {
  GpuTestModel loaded(Format::kBF16);
  for (const int32_t num : {1, 16}) {
    const std::vector<Request> requests = requests_for(num);
    Engine plain(*loaded.model, loaded.cx, engine_options());
    const std::vector<Transcript> expected = run_all(plain, requests);
    for (int32_t k = 1; k <= 7; ++k) {
      // With pauses, in which steps are begun ahead.
      for (const std::vector<int32_t>& right :
           {std::vector{k}, {0}, {k, 0, k / 2, -1, -1, -1, 1, -1}}) {
        const auto drafter = std::make_shared<ScriptedDrafter>(requests, expected, right);
        Engine engine(*loaded.model, loaded.cx, speculative(engine_options(), drafter, k));
        const std::string what = std::to_string(num) + " sequences, k " + std::to_string(k);
        EXPECT_TRUE(run_all(engine, requests) == expected) << what;
        EXPECT_TRUE(run_all(engine, requests) == expected) << what << ", after prefix hits";
        EXPECT_GT(engine.stats().speculation.num_draft_tokens, 0);
        EXPECT_EQ(engine.stats().kv_usage, 0);
      }
    }
  }
}

TEST(SpeculationGpu, PreemptedAndEager) {
  GpuTestModel loaded(Format::kMxfp8);
  const std::vector<Request> requests = requests_for(16);
  Engine plain(*loaded.model, loaded.cx, engine_options());
  const std::vector<Transcript> expected = run_all(plain, requests);
  const auto drafter =
      std::make_shared<ScriptedDrafter>(requests, expected, std::vector{3, 0, 1, -1, 3, 2});
  EngineOptions tight = speculative(engine_options(), drafter, 3);
  tight.max_model_len = 224;
  tight.kv_bytes = Engine::kv_bytes_for(loaded.model->info(), tight, 224, 1);
  Engine small(*loaded.model, loaded.cx, tight);
  EXPECT_TRUE(run_all(small, requests) == expected);
  EXPECT_GE(small.stats().num_preemptions, 1);
  EngineOptions eager = speculative(engine_options(), drafter, 3);
  eager.graphs = false;
  Engine without(*loaded.model, loaded.cx, eager);
  EXPECT_TRUE(run_all(without, requests) == expected);
}

// Adaptive, on texts that repeat themselves: whatever it chooses, the text stays.
TEST(SpeculationGpu, NgramChangesNothing) {
  GpuTestModel loaded(Format::kBF16);
  std::vector<Request> requests = requests_for(8);
  for (Request& request : requests) request.sampling.temperature = 0, request.max_tokens = 150;
  Engine plain(*loaded.model, loaded.cx, engine_options());
  const std::vector<Transcript> expected = run_all(plain, requests);
  for (const bool is_adaptive : {false, true}) {
    EngineOptions options = engine_options();
    options.speculation = {.method = SpeculationOptions::Method::kNgram,
                           .num_tokens = 4,
                           .is_adaptive = is_adaptive,
                           .ngram_min = 1,
                           .ngram_max = 4};
    Engine engine(*loaded.model, loaded.cx, options);
    EXPECT_TRUE(run_all(engine, requests) == expected) << is_adaptive;
  }
}

}  // namespace
}  // namespace nibble
