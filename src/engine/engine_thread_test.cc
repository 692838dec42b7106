// Many clients at once, and many random lives of requests. Run under TSan too (preset tsan).
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

#include "engine/engine.h"
#include "engine/engine_testing.h"

namespace nibble {
namespace {

// Counts ends; wait() returns when as many as were started have ended.
class Ends {
 public:
  void start() {
    const std::lock_guard lock(mutex_);
    ++started_;
  }
  void end() {
    const std::lock_guard lock(mutex_);
    ++ended_;
    wake_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return started_ == ended_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  int started_ = 0;
  int ended_ = 0;
};

using Method = SpeculationOptions::Method;

// With or without tokens drafted ahead.
class EngineLoad : public testing::TestWithParam<Method> {};

INSTANTIATE_TEST_SUITE_P(Drafts, EngineLoad,
                         testing::Values(Method::kNone, Method::kNgram, Method::kSuffix));

EngineOptions tight_options(Method method) {
  EngineOptions options = toy_options();
  options.max_num_seqs = 6;
  options.max_num_batched_tokens = 24;
  options.max_model_len = 128;
  options.kv_bytes = Engine::kv_bytes_for(ToyModel().info(), options, 128, 2);
  options.speculation = {.method = method,
                         .num_tokens = method == Method::kNone ? 0 : 3,
                         .is_adaptive = method != Method::kNgram,
                         .ngram_min = 1,
                         .ngram_max = 3};
  return options;
}

TEST_P(EngineLoad, ManyClientsSubmitAndCancel) {
  ToyModel model;
  Engine engine(model, {}, tight_options(GetParam()));
  engine.start();
  Ends ends;
  std::atomic<int> num_canceled = 0, num_tokens = 0;
  const auto client = [&](uint32_t seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 40; ++i) {
      Request request{.prompt = toy_prompt(1 + random() % 60, i),
                      .max_tokens = static_cast<int32_t>(1 + random() % 60)};
      request.on_output = [&](const Output& output) {
        num_tokens += output.id >= 0;
        num_canceled += output.finish == FinishReason::kCanceled;
        if (output.finish != FinishReason::kNone) ends.end();
      };
      ends.start();
      const Result<RequestId> id = engine.submit(std::move(request));
      ASSERT_TRUE(id.ok());
      if (random() % 3 == 0) engine.cancel(*id);
      if (random() % 4 == 0) {
        EXPECT_LE(engine.stats().kv_usage, 1);
      }
    }
  };
  std::vector<std::thread> clients;
  for (uint32_t seed = 1; seed <= 4; ++seed) clients.emplace_back(client, seed);
  for (std::thread& t : clients) t.join();
  ends.wait();
  EXPECT_GT(num_canceled, 0);
  EXPECT_GT(num_tokens, 0);
}

// All that a server asks of the engine, from several threads, in memory for two long sequences.
TEST_P(EngineLoad, ForksPrioritiesDeadlinesAndSharedPromptsAtOnce) {
  ToyModel model;
  Engine engine(model, {}, tight_options(GetParam()));
  engine.start();
  Ends ends;
  std::atomic<int> by_reason[kNumFinishReasons] = {};
  std::atomic<int64_t> cached = 0;
  const auto client = [&](uint32_t seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 60; ++i) {
      Request request{.prompt = toy_prompt(1 + random() % 60, random() % 3),
                      .max_tokens = static_cast<int32_t>(1 + random() % 60),
                      .priority = static_cast<int32_t>(random() % 3)};
      if (random() % 4 == 0) request.cache_salt = "tenant";
      if (random() % 5 == 0) {
        request.deadline =
            std::chrono::steady_clock::now() + std::chrono::milliseconds(random() % 3);
      }
      request.on_output = [&](const Output& output) {
        if (output.id >= 0) cached += output.cached_tokens;
        if (output.finish == FinishReason::kNone) return;
        ++by_reason[static_cast<size_t>(output.finish)];
        ends.end();
      };
      std::vector<Request> forks(1 + random() % 3, request);
      for (size_t f = 0; f < forks.size(); ++f) ends.start();
      const auto ids = engine.submit_forks(std::move(forks));
      ASSERT_TRUE(ids.ok());
      if (random() % 3 == 0) engine.cancel((*ids)[random() % ids->size()]);
      const EngineStats stats = engine.stats();
      EXPECT_LE(stats.metrics.time_to_first_token_s.count(), stats.generation_tokens);
    }
  };
  std::vector<std::thread> clients;
  for (uint32_t seed = 1; seed <= 4; ++seed) clients.emplace_back(client, seed);
  for (std::thread& t : clients) t.join();
  ends.wait();
  EXPECT_GT(by_reason[static_cast<size_t>(FinishReason::kLength)], 0);
  EXPECT_EQ(by_reason[static_cast<size_t>(FinishReason::kError)], 0);
  EXPECT_GT(cached, 0);
}

TEST(EngineThread, CancelFromTheCallbackItself) {
  ToyModel model;
  Engine engine(model, {}, toy_options());
  std::atomic<RequestId> id = 0;
  std::atomic<int> tokens = 0;
  Ends ends;
  Request request{.prompt = toy_prompt(5, 1), .max_tokens = 400};
  request.on_output = [&](const Output& output) {
    tokens += output.id >= 0;
    if (tokens == 3) engine.cancel(id);
    if (output.finish != FinishReason::kNone) ends.end();
  };
  ends.start();
  id = *engine.submit(std::move(request));
  engine.start();
  ends.wait();
  EXPECT_EQ(tokens, 3);
}

TEST(EngineThread, DestructionWhileClientsWait) {
  ToyModel model;
  Ends ends;
  for (int round = 0; round < 20; ++round) {
    Engine engine(model, {}, toy_options());
    engine.start();
    for (int i = 0; i < 8; ++i) {
      Request request{.prompt = toy_prompt(20, i), .max_tokens = 400};
      request.on_output = [&](const Output& output) {
        if (output.finish != FinishReason::kNone) ends.end();
      };
      ends.start();
      ASSERT_TRUE(engine.submit(std::move(request)).ok());
    }
  }
  ends.wait();
}

// Thousands of requests with random lengths, cancels and memory for two long ones: each ends once,
// the text of each is what it is alone, and no page is lost.
TEST_P(EngineLoad, RandomLivesLeaveNoPageBehind) {
  ToyModel model;
  Engine engine(model, {}, tight_options(GetParam()));
  std::mt19937 random(5);
  struct Life {
    Request request;
    RequestId id;
    std::shared_ptr<Transcript> transcript;
  };
  std::vector<Life> lives;
  for (int i = 0; i < 3000; ++i) {
    for (int steps = random() % 4; steps > 0; --steps) engine.step();
    Request request{.prompt = toy_prompt(1 + random() % 90, i),
                    .max_tokens = static_cast<int32_t>(1 + random() % 38)};
    request.sampling.seed = random();
    if (random() % 8 == 0) request.prompt_logprobs = 0;
    Life life{.request = request, .id = 0, .transcript = record(request)};
    life.id = *engine.submit(std::move(request));
    lives.push_back(std::move(life));
    if (random() % 3 == 0) {
      const size_t back = random() % std::min<size_t>(lives.size(), 20);
      engine.cancel(lives[lives.size() - 1 - back].id);
    }
    if (engine.stats().num_waiting > 30) {
      while (engine.stats().num_waiting > 5) engine.step();
    }
  }
  while (engine.step()) {
  }
  EXPECT_EQ(engine.stats().kv_usage, 0);
  EXPECT_GT(engine.stats().num_preemptions, 100);
  int num_canceled = 0;
  for (size_t i = 0; i < lives.size(); ++i) {
    const Transcript& t = *lives[i].transcript;
    ASSERT_EQ(t.num_ends, 1);
    num_canceled += t.finish == FinishReason::kCanceled;
    if (i % 10 != 0) continue;
    const Transcript alone = run_alone(toy_options(), lives[i].request);
    ASSERT_LE(t.ids.size(), alone.ids.size());
    EXPECT_TRUE(std::equal(t.ids.begin(), t.ids.end(), alone.ids.begin())) << "request " << i;
    if (t.finish == FinishReason::kLength) {
      EXPECT_EQ(t.ids.size(), alone.ids.size());
    }
  }
  EXPECT_GT(num_canceled, 100);
  if (GetParam() == Method::kNgram) {
    EXPECT_GT(engine.stats().speculation.num_accepted_tokens, 100);
  }
}

}  // namespace
}  // namespace nibble
