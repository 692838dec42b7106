// Recurrent layers on a GPU: texts are what the host computes without an engine, with steps begun
// ahead, in graphs or not, whatever is shared, cut, dropped or put back.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "cuda/stream.h"
#include "engine/engine.h"
#include "engine/engine_testing.h"
#include "engine/speculation_testing.h"
#include "engine/toy_gpu_model.h"

namespace nibble {
namespace {

using Tokens = std::vector<int32_t>;

class EngineStatesGpu : public testing::Test {
 protected:
  EngineStatesGpu() {
    cx_.kernels.gpu = cuda::open_device();
    cx_.stream = stream_.handle();
    cx_.activations = DType::kBF16;
  }

  static EngineOptions options(int32_t step_tokens = 64, int32_t page_size = 16) {
    return {.max_num_seqs = 16,
            .max_num_batched_tokens = step_tokens,
            .max_model_len = 512,
            .page_size = page_size,
            .kv_bytes = int64_t{64} << 20};
  }

  static Request greedy(Tokens prompt, int32_t max_tokens) {
    Request request{.prompt = std::move(prompt), .max_tokens = max_tokens};
    request.sampling.temperature = 0;
    return request;
  }

  static std::vector<Request> many_requests() {
    std::vector<Request> requests;
    for (int32_t i = 0; i < 16; ++i) {
      requests.push_back(greedy(toy_prompt(1 + i * 17, i, ToyNumbers::kVocab), 40 - i));
      requests.back().sampling.seed = i;
      if (i % 4 == 1) requests.back().sampling.logprobs = 3;
    }
    return requests;
  }

  static void expect_right(const std::vector<Request>& requests,
                           const std::vector<Transcript>& found, const std::string& what) {
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(found[i].error, "") << what << ", request " << i;
      EXPECT_EQ(found[i].ids, toy_answer(requests[i].prompt, requests[i].max_tokens))
          << what << ", request " << i;
    }
  }

  static void expect_idle(const Engine& engine) {
    EXPECT_EQ(engine.stats().kv_usage, 0);
    EXPECT_EQ(engine.stats().states_running, 0);
  }

  cuda::Stream stream_;
  ops::Ctx cx_;
  ToyGpuModel model_;
};

TEST_F(EngineStatesGpu, BatchesInAnyChunks) {
  const std::vector<Request> requests = many_requests();
  for (const int32_t tokens : {17, 64, 4096}) {
    for (const bool graphs : {true, false}) {
      EngineOptions some = options(tokens);
      some.graphs = graphs;
      Engine engine(model_, cx_, some);
      const std::string what = std::to_string(tokens) + (graphs ? "" : ", eager");
      expect_right(requests, run_all(engine, requests), what);
      expect_right(requests, run_all(engine, requests), what + ", prefixes known");
      expect_idle(engine);
    }
  }
}

TEST_F(EngineStatesGpu, AnswersAreFoundAtEveryOffsetOfAPage) {
  Engine engine(model_, cx_, options());
  Request turn = greedy(toy_prompt(30, 1, ToyNumbers::kVocab), 20);
  for (int32_t i = 0; i < 14; ++i) {
    turn.max_tokens = 5 + 3 * i;
    const Transcript answer = run_all(engine, {turn})[0];
    expect_right({turn}, {answer}, "turn " + std::to_string(i));
    EXPECT_EQ(answer.cached_tokens, i > 0 ? std::ssize(turn.prompt) - 3 : 0);
    turn.prompt.insert(turn.prompt.end(), answer.ids.begin(), answer.ids.end());
    turn.prompt.insert(turn.prompt.end(), {i, i + 1});
  }
}

TEST_F(EngineStatesGpu, Preempted) {
  EngineOptions tight = options();
  tight.max_model_len = 320;
  tight.kv_bytes = Engine::kv_bytes_for(model_.info(), tight, 320, 2);
  for (const bool caching : {true, false}) {
    tight.prefix_caching = caching;
    Engine engine(model_, cx_, tight);
    expect_right(many_requests(), run_all(engine, many_requests()), "");
    EXPECT_GE(engine.stats().num_preemptions, 1);
    expect_idle(engine);
  }
}

TEST_F(EngineStatesGpu, DraftsInEveryPattern) {
  const std::vector<Request> requests = many_requests();
  std::vector<Transcript> expected(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    expected[i].ids = toy_answer(requests[i].prompt, requests[i].max_tokens);
  }
  for (const int32_t k : {1, 3, 7}) {
    // With pauses, in which steps are begun ahead.
    for (const Tokens& right : {Tokens{k}, {0}, {k, 0, k / 2, -1, -1, -1, 1, -1}}) {
      const auto drafter = std::make_shared<ScriptedDrafter>(requests, expected, right);
      Engine engine(model_, cx_, speculative(options(160), drafter, k));
      expect_right(requests, run_all(engine, requests), "k " + std::to_string(k));
      EXPECT_GT(engine.stats().speculation.num_draft_tokens, 0);
      expect_idle(engine);
    }
  }
}

// Turns of chats, forks, drafts and cancels at random, over memory for a few.
TEST_F(EngineStatesGpu, RandomLives) {
  int64_t hits = 0;
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    std::mt19937 random(seed);
    const auto any = [&](int32_t low, int32_t high) {
      return std::uniform_int_distribution<int32_t>(low, high)(random);
    };
    EngineOptions some = options(any(6, 100), any(1, 16));
    some.max_num_seqs = 6;
    const int64_t least = Engine::kv_bytes_for(model_.info(), some, 512, 1);
    const int64_t most = Engine::kv_bytes_for(model_.info(), some, 512, 6);
    some.kv_bytes = least + (most - least) * any(0, 10) / 10;
    some.speculation = {.method = SpeculationOptions::Method::kNgram,
                        .num_tokens = any(0, 3),
                        .ngram_min = 1,
                        .ngram_max = 3};
    Engine engine(model_, cx_, some);
    std::vector<Tokens> texts{toy_prompt(100, 1, ToyNumbers::kVocab)};
    for (int round = 0; round < 15; ++round) {
      std::vector<std::pair<Request, std::shared_ptr<Transcript>>> sent;
      std::vector<RequestId> ids;
      for (int32_t n = any(1, 6); n > 0; --n) {
        Tokens prompt = texts[any(0, static_cast<int32_t>(texts.size()) - 1)];
        prompt.resize(std::min<size_t>(prompt.size(), any(1, 300)));
        for (int32_t more = any(0, 8); more > 0; --more) prompt.push_back(any(0, 3));
        std::vector<Request> forks(any(0, 2) == 0 ? 3 : 1, greedy(prompt, any(1, 60)));
        for (Request& request : forks) {
          sent.push_back({request, nullptr});
          sent.back().second = record(request);
        }
        const auto some_ids = engine.submit_forks(std::move(forks));
        ASSERT_TRUE(some_ids.ok());
        ids.insert(ids.end(), some_ids->begin(), some_ids->end());
        for (int32_t steps = any(0, 12); steps > 0; --steps) engine.step();
        if (any(0, 4) == 0) engine.cancel(ids[any(0, static_cast<int32_t>(ids.size()) - 1)]);
      }
      while (engine.step()) {
      }
      for (const auto& [request, found] : sent) {
        ASSERT_EQ(found->num_ends, 1);
        ASSERT_EQ(found->error, "");
        Tokens expected = toy_answer(request.prompt, request.max_tokens);
        if (found->finish == FinishReason::kCanceled) expected.resize(found->ids.size());
        ASSERT_EQ(found->ids, expected) << "seed " << seed << ", round " << round;
        texts.push_back(request.prompt);
        texts.back().insert(texts.back().end(), expected.begin(), expected.end());
        if (texts.size() > 12) texts.erase(texts.begin());
      }
    }
    expect_idle(engine);
    hits += engine.stats().prefix_cache_hits;
  }
  EXPECT_GT(hits, 2000);
}

}  // namespace
}  // namespace nibble
