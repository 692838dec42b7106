// For tests: random lives of sequences in an engine whose model has recurrent layers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "engine/engine_testing.h"

namespace nibble {

// Turns of chats, forks, scored prompts, salts, priorities, drafts and cancels at random, over
// memory for a few, in steps of 4 to 4,096 tokens: each text is what `alone` makes of its request,
// by an engine of its own.
class Lives {
 public:
  Lives(uint32_t seed, int num_rounds, std::function<Transcript(const Request&)> alone)
      : num_rounds_(num_rounds), alone_(std::move(alone)), random_(seed) {}

  void run(Model& model, const ops::Ctx& cx, EngineOptions options) {
    options.page_size = any(0, 2) == 0 ? 1 : any(2, 8);
    options.max_num_batched_tokens = any(0, 5) == 0 ? 4096 : any(4, 80);
    options.max_model_len = 256;
    options.max_num_seqs = 4;
    const int64_t least = Engine::kv_bytes_for(model.info(), options, 256, 1);
    const int64_t most = Engine::kv_bytes_for(model.info(), options, 256, 4);
    options.kv_bytes = least + (most - least) * any(0, 10) / 10;
    options.speculation = {.method = SpeculationOptions::Method::kNgram,
                           .num_tokens = any(0, 3),
                           .is_adaptive = any(0, 1) == 0,
                           .ngram_min = 1,
                           .ngram_max = 3};
    Engine engine(model, cx, options);
    for (int round = 0; round < num_rounds_; ++round) turn(engine);
    EXPECT_EQ(engine.stats().kv_usage, 0);
    EXPECT_EQ(engine.stats().states_running, 0);
    num_preemptions += engine.stats().num_preemptions;
    num_hits += engine.stats().prefix_cache_hits;
    num_rejected += engine.stats().speculation.num_draft_tokens -
                    engine.stats().speculation.num_accepted_tokens;
  }

  int64_t num_preemptions = 0, num_hits = 0, num_rejected = 0;

 private:
  int32_t any(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }

  Request any_request() {
    std::vector<int32_t> prompt(any(1, 150));
    const int32_t same = any(0, 150);
    for (int32_t i = 0; i < std::ssize(prompt); ++i) prompt[i] = i < same ? i % 7 : any(0, 3);
    if (!texts_.empty() && any(0, 2) > 0) {
      prompt = texts_[any(0, static_cast<int32_t>(texts_.size()) - 1)];
      prompt.resize(std::min<size_t>(prompt.size(), any(1, 200)));
      for (int32_t n = any(0, 8); n > 0; --n) prompt.push_back(any(0, 3));
    }
    Request r{.prompt = std::move(prompt), .max_tokens = any(1, 40)};
    r.sampling = {.temperature = any(0, 1) * 0.7f, .seed = random_(), .logprobs = any(-1, 2)};
    if (any(0, 5) == 0) r.prompt_logprobs = 1;
    if (any(0, 4) == 0) r.cache_salt = "salt";
    r.priority = any(0, 1);
    return r;
  }

  void turn(Engine& engine) {
    std::vector<std::pair<Request, std::shared_ptr<Transcript>>> sent;
    std::vector<RequestId> ids;
    for (int32_t n = any(1, 6); n > 0; --n) {
      std::vector<Request> forks(any(0, 2) == 0 ? 3 : 1, any_request());
      for (size_t i = 0; i < forks.size(); ++i) {
        if (i > 0) forks[i].prompt_logprobs = -1;
        forks[i].sampling.seed = random_();
        sent.push_back({forks[i], nullptr});
        sent.back().second = record(forks[i]);
      }
      const auto some = engine.submit_forks(std::move(forks));
      ASSERT_TRUE(some.ok());
      ids.insert(ids.end(), some->begin(), some->end());
      for (int32_t steps = any(0, 10); steps > 0; --steps) engine.step();
      if (any(0, 4) == 0) engine.cancel(ids[any(0, static_cast<int32_t>(ids.size()) - 1)]);
    }
    while (engine.step()) {
    }
    for (const auto& [request, found] : sent) {
      ASSERT_EQ(found->num_ends, 1);
      Transcript expected = alone_(request);
      if (found->finish == FinishReason::kCanceled) {  // a part of it
        expected.outputs.resize(found->outputs.size(), {});
        if (!expected.outputs.empty()) expected.outputs.back().finish = FinishReason::kNone;
        expected.scores.resize(found->scores.size(), {});
        expected.finish = FinishReason::kCanceled;
      }
      EXPECT_TRUE(*found == expected);
      texts_.push_back(request.prompt);
      texts_.back().insert(texts_.back().end(), found->ids.begin(), found->ids.end());
      if (texts_.size() > 12) texts_.erase(texts_.begin());
    }
  }

  const int num_rounds_;
  const std::function<Transcript(const Request&)> alone_;
  std::mt19937 random_;
  std::vector<std::vector<int32_t>> texts_;
};

}  // namespace nibble
