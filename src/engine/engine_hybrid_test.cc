// Models with recurrent layers in the engine: the same bits alone as in a batch, in chunks of any
// size, after hits anywhere in a text, after preemption, and with drafts.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cpu/thread_pool.h"
#include "engine/engine.h"
#include "engine/engine_hybrid_testing.h"
#include "engine/lives_testing.h"
#include "engine/speculation_testing.h"
#include "models/model.h"

namespace nibble {
namespace {

struct Setting {
  const char* name;
  ops::ActFormat activations;
};

class HybridEngine : public testing::TestWithParam<Setting> {
 protected:
  HybridEngine() {
    cx_.pool = &pool_;
    cx_.kernels.activations = GetParam().activations;
    if (GetParam().activations == ops::ActFormat::kBF16) cx_.activations = DType::kBF16;
    model_ = load();
  }

  std::unique_ptr<Model> load() {
    const std::string families = std::string(NIBBLE_SOURCE_DIR) + "/tests/goldens/families/";
    return load_model(cx_, families + GetParam().name, {});
  }

  static EngineOptions options(int32_t step_tokens = 64) {
    return {.max_num_seqs = 8,
            .max_num_batched_tokens = step_tokens,
            .max_model_len = 384,
            .kv_bytes = int64_t{64} << 20};
  }

  // Half greedy, half drawn.
  std::vector<Request> requests() const {
    std::vector<Request> all;
    for (int32_t i = 0; i < 10; ++i) {
      Request r{.prompt = toy_prompt(1 + i * 19, i, model_->info().vocab_size),
                .max_tokens = 24 - i};
      r.sampling = {.temperature = i % 2 == 0 ? 0.0f : 1.0f, .seed = 7 + i, .logprobs = 3};
      all.push_back(r);
    }
    return all;
  }

  std::vector<Transcript> alone(const std::vector<Request>& requests) {
    std::vector<Transcript> all;
    for (const Request& r : requests) all.push_back(run_alone(*model_, cx_, options(), r));
    return all;
  }

  cpu::ThreadPool pool_{1};
  ops::Ctx cx_;
  std::unique_ptr<Model> model_;
};

TEST_P(HybridEngine, BatchesChunksHitsAndPreemption) {
  const std::vector<Transcript> expected = alone(requests());
  Engine engine(*model_, cx_, options());
  expect_same(run_all(engine, requests()), expected, "batch");
  expect_same(run_all(engine, requests()), expected, "texts known");
  expect_same(run_all(engine, requests()), expected, "states known where they part");
  EXPECT_GT(engine.stats().prefix_cache_hits, 0);
  Engine fine(*model_, cx_, options(17));
  expect_same(run_all(fine, requests()), expected, "chunks");

  EngineOptions tight = options();
  tight.max_model_len = 224;
  tight.prefix_caching = false;
  tight.kv_bytes = bytes_for_one_and_states(model_->info(), tight);
  const std::vector<Request> long_ones = long_requests(model_->info().vocab_size);
  const std::vector<Transcript> long_alone = alone(long_ones);
  Engine small(*model_, cx_, tight);
  expect_same(run_all(small, long_ones), long_alone, "preempted");
  EXPECT_GE(small.stats().num_preemptions, 1);
  EXPECT_EQ(small.stats().states_running, 0);
}

TEST_P(HybridEngine, TurnsOfAChatHitAtAnyOffsetOfAPage) {
  Engine engine(*model_, cx_, options());
  std::vector<Request> turns;
  std::vector<Transcript> answers;
  Request turn{.prompt = toy_prompt(30, 1, model_->info().vocab_size)};
  turn.sampling = {.temperature = 0, .logprobs = 3};
  for (int32_t i = 0; i < 8; ++i) {
    turn.max_tokens = 9 + 4 * i;
    const Transcript answer = run_all(engine, {turn})[0];
    turns.push_back(turn), answers.push_back(answer);
    EXPECT_EQ(answer.cached_tokens, i > 0 ? std::ssize(turn.prompt) - 3 : 0);
    turn.prompt.insert(turn.prompt.end(), answer.ids.begin(), answer.ids.end());
    turn.prompt.insert(turn.prompt.end(), {i, i + 1});
  }
  expect_same(answers, alone(turns), "turns");
}

TEST_P(HybridEngine, DraftsThatComeTrueOrDoNot) {
  const std::vector<Request> all = requests();
  const std::vector<Transcript> expected = alone(all);
  for (const uint32_t pattern : {0u, 0b0110111u, ~0u}) {
    const auto drafter = std::make_shared<ScriptedDrafter>(all, expected, pattern);
    Engine engine(*model_, cx_, speculative(options(), drafter, 3));
    expect_same(run_all(engine, all), expected, "drafts");
    EXPECT_EQ(engine.stats().speculation.num_accepted_tokens > 0, pattern != 0);
  }
}

// What was said before a draft that did not come true is kept, so the next step has drafts again.
TEST_P(HybridEngine, ARejectionLeavesTheNextStepItsDrafts) {
  Request request = requests()[2];
  request.max_tokens = 40;
  const std::vector<Transcript> expected = alone({request});
  for (const uint32_t pattern : {0u, 0b0101101u, 0b0011001u}) {
    const auto drafter = std::make_shared<ScriptedDrafter>(std::vector{request}, expected, pattern);
    Engine engine(*model_, cx_, speculative(options(), drafter, 3));
    expect_same(run_all(engine, {request}), expected, "drafts");
    // The prompt's step, and then a token a step beside what came true.
    const SpeculationCounts& counts = engine.stats().speculation;
    EXPECT_EQ(engine.stats().num_steps, 40 - counts.num_accepted_tokens) << pattern;
    EXPECT_GT(counts.num_draft_tokens, counts.num_accepted_tokens);
    // All steps but the first and the last.
    EXPECT_GE(counts.num_drafts, engine.stats().num_steps - 2) << pattern;
  }
}

// An engine gives its model memory: those that run alone have another one.
TEST_P(HybridEngine, RandomLivesKeepTheirText) {
  const std::unique_ptr<Model> other = load();
  int64_t num_preemptions = 0, num_hits = 0;
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Lives lives(seed,
                [&](const Request& request) { return run_alone(*other, cx_, options(), request); });
    lives.run(*model_, cx_, options(), /*rounds=*/4);
    num_preemptions += lives.num_preemptions, num_hits += lives.num_hits;
    if (HasFailure()) return;
  }
  EXPECT_GT(num_preemptions, 0);
  EXPECT_GT(num_hits, 100);
}

INSTANTIATE_TEST_SUITE_P(Models, HybridEngine,
                         testing::Values(Setting{"qwen3_next", ops::ActFormat::kFloat},
                                         Setting{"qwen3_next", ops::ActFormat::kBF16},
                                         Setting{"nemotron_h", ops::ActFormat::kFloat},
                                         Setting{"qwen3_5_moe", ops::ActFormat::kFloat}),
                         [](const auto& info) {
                           return std::string(info.param.name) +
                                  (info.param.activations == ops::ActFormat::kBF16 ? "_bf16" : "");
                         });

}  // namespace
}  // namespace nibble
