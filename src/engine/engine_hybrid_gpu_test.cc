// Models with recurrent layers on a GPU, in the engine, under --exact: the same bits alone as in a
// batch, in chunks of any size, after hits anywhere in a text, after preemption, and with drafts.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cpu/thread_pool.h"
#include "cuda/device.h"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "engine/engine.h"
#include "engine/engine_hybrid_testing.h"
#include "engine/lives_testing.h"
#include "engine/speculation_testing.h"
#include "models/draft_head.h"
#include "models/model.h"

namespace nibble {
namespace {

class HybridEngineGpu : public testing::TestWithParam<const char*> {
 protected:
  HybridEngineGpu() {
    cx_.pool = &pool_;
    cx_.activations = DType::kBF16;
    cx_.kernels.activations = ops::ActFormat::kBF16;
    cx_.kernels.exact = true;
    cx_.kernels.gpu = cuda::open_device();
    cx_.stream = stream_.handle();
    model_ = load();
  }

  std::unique_ptr<Model> load() {
    LoadOptions load;
    load.memory = {.allocate = cuda::device_buffer,
                   .allocate_staging = cuda::pinned_buffer,
                   .copy = cuda::copy};
    const std::string families = std::string(NIBBLE_SOURCE_DIR) + "/tests/goldens/families/";
    return load_model(cx_, families + GetParam(), load);
  }

  static EngineOptions options(int32_t step_tokens = 64) {
    return {.max_num_seqs = 16,
            .max_num_batched_tokens = step_tokens,
            .max_model_len = 512,
            .kv_bytes = int64_t{64} << 20};
  }

  // Greedy ones and drawn ones, of both some whose logits come to the host.
  std::vector<Request> requests() const {
    std::vector<Request> all;
    for (int32_t i = 0; i < 16; ++i) {
      Request r{.prompt = toy_prompt(1 + i * 13, i, model_->info().vocab_size),
                .max_tokens = 40 - i};
      r.sampling = {.temperature = i % 2 == 0 ? 0.0f : 1.0f, .seed = 7 + i};
      if (i % 4 == 1) r.sampling.logprobs = 3;
      all.push_back(r);
    }
    return all;
  }

  std::vector<Transcript> alone(const std::vector<Request>& requests) {
    std::vector<Transcript> all;
    for (const Request& r : requests) all.push_back(run_alone(*model_, cx_, options(), r));
    return all;
  }

  cpu::ThreadPool pool_{2};
  cuda::Stream stream_;
  ops::Ctx cx_;
  std::unique_ptr<Model> model_;
};

TEST_P(HybridEngineGpu, BatchesChunksHitsAndPreemption) {
  const std::vector<Transcript> expected = alone(requests());
  Engine engine(*model_, cx_, options());
  expect_same(run_all(engine, requests()), expected, "batch");
  expect_same(run_all(engine, requests()), expected, "texts known");
  expect_same(run_all(engine, requests()), expected, "states known where they part");
  EXPECT_GT(engine.stats().prefix_cache_hits, 0);
  Engine fine(*model_, cx_, options(17));
  expect_same(run_all(fine, requests()), expected, "chunks");
  EngineOptions eager = options();
  eager.graphs = false;
  Engine launched(*model_, cx_, eager);
  expect_same(run_all(launched, requests()), expected, "eager");

  EngineOptions tight = options();
  tight.max_model_len = 256;
  tight.prefix_caching = false;
  tight.kv_bytes = bytes_for_one_and_states(model_->info(), tight);
  const std::vector<Request> long_ones = long_requests(model_->info().vocab_size);
  const std::vector<Transcript> long_alone = alone(long_ones);
  Engine small(*model_, cx_, tight);
  expect_same(run_all(small, long_ones), long_alone, "preempted");
  EXPECT_GE(small.stats().num_preemptions, 1);
  EXPECT_EQ(small.stats().states_running, 0);
}

// Alone first: an engine that is made later gives the model other memory.
TEST_P(HybridEngineGpu, TurnsOfAChatHitAtAnyOffsetOfAPage) {
  std::vector<Request> turns;
  std::vector<Transcript> expected;
  Request turn{.prompt = toy_prompt(30, 1, model_->info().vocab_size)};
  turn.sampling = {.temperature = 0, .logprobs = 3};
  for (int32_t i = 0; i < 10; ++i) {
    turn.max_tokens = 9 + 4 * i;
    turns.push_back(turn);
    expected.push_back(alone({turn})[0]);
    turn.prompt.insert(turn.prompt.end(), expected[i].ids.begin(), expected[i].ids.end());
    turn.prompt.insert(turn.prompt.end(), {i, i + 1});
  }
  Engine engine(*model_, cx_, options());
  for (size_t i = 0; i < turns.size(); ++i) {
    const Transcript answer = run_all(engine, {turns[i]})[0];
    expect_same({answer}, {expected[i]}, "turn");
    EXPECT_EQ(answer.cached_tokens, i > 0 ? std::ssize(turns[i].prompt) - 3 : 0);
  }
}

TEST_P(HybridEngineGpu, DraftsThatComeTrueOrDoNot) {
  const std::vector<Request> all = requests();
  const std::vector<Transcript> expected = alone(all);
  for (const std::vector<int32_t>& right :
       {std::vector<int32_t>{3}, {0}, {3, 0, 1, -1, -1, -1, 2, -1}}) {
    const auto drafter = std::make_shared<ScriptedDrafter>(all, expected, right);
    Engine engine(*model_, cx_, speculative(options(160), drafter, 3));
    expect_same(run_all(engine, all), expected, "drafts");
    EXPECT_GT(engine.stats().speculation.num_draft_tokens, 0);
  }
}

TEST_P(HybridEngineGpu, RandomLivesKeepTheirText) {
  const std::unique_ptr<Model> other = load();
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Lives lives(seed,
                [&](const Request& request) { return run_alone(*other, cx_, options(), request); });
    lives.run(*model_, cx_, options(), /*rounds=*/4);
    if (HasFailure()) return;
  }
}

// By the layers of tests/goldens/mtp; their drafts never come to the host before they are verified.
class MtpEngineGpu : public HybridEngineGpu {};
TEST_P(MtpEngineGpu, SameBitsForEveryNumberOfDrafts) {
  const std::vector<Request> all = requests();
  const std::vector<Transcript> expected = alone(all);
  const LoadOptions load{.memory = {.allocate = cuda::device_buffer,
                                    .allocate_staging = cuda::pinned_buffer,
                                    .copy = cuda::copy}};
  const std::shared_ptr<DraftHead> head = load_draft_head(
      cx_, {std::string(NIBBLE_SOURCE_DIR) + "/tests/goldens/mtp/" + GetParam()}, *model_, load);
  for (const int32_t k : {1, 3, 7}) {
    EngineOptions drafts = options(160);
    drafts.speculation = {.method = SpeculationOptions::Method::kHead,
                          .num_tokens = k,
                          .is_adaptive = false,
                          .draws_drafts = k == 3,
                          .head_group = head->model().info().groups[0],
                          .head = head};
    Engine engine(*model_, cx_, drafts);
    expect_same(run_all(engine, all), expected, "drafts");
    expect_same(run_all(engine, all), expected, "texts known");
    expect_same(run_all(engine, all), expected, "states known where they part");
    EXPECT_GT(engine.stats().prefix_cache_hits, 0);
    EXPECT_GT(engine.stats().speculation.num_draft_tokens, 0);
    EXPECT_EQ(engine.stats().states_running, 0);
  }
}

std::string name_of(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}
INSTANTIATE_TEST_SUITE_P(Models, HybridEngineGpu,
                         testing::Values("qwen3_next", "qwen3_next-128", "qwen3_next-modelopt",
                                         "nemotron_h"),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Models, MtpEngineGpu, testing::Values("qwen3_next", "qwen3_next-128"),
                         name_of);

}  // namespace
}  // namespace nibble
