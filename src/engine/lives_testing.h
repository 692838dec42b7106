// Lives: requests of all kinds at random, in turns of chats, with forks, late masks and cancels,
// over one engine. What is said has to be what each says alone.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "engine/engine_testing.h"

namespace nibble {

// Allows every other id, by how many came; with a salt its mask is late now and then.
class LateWatcher : public TokenWatcher {
 public:
  explicit LateWatcher(uint32_t salt) : salt_(salt) {}
  Watch accept(int32_t) override {
    ++num_;
    num_asked_ = 0;
    return Watch::kGoOn;
  }
  void rollback(int) override {}
  bool mask(std::span<uint32_t> bits) override {
    for (uint32_t& word : bits) word &= num_ % 2 == 0 ? 0x55555555u : 0xAAAAAAAAu;
    return true;
  }
  MaskState mask_state() const override {
    const bool is_pending = salt_ != 0 && (num_ + salt_) % 7 == 3 && num_asked_++ < 2;
    return is_pending ? MaskState::kPending : MaskState::kReady;
  }

 private:
  uint32_t salt_, num_ = 0;
  mutable int32_t num_asked_ = 0;
};

class Lives {
 public:
  // `alone`: what a request says in an engine of its own.
  Lives(uint32_t seed, std::function<Transcript(const Request&)> alone)
      : alone_(std::move(alone)), random_(seed) {}

  // Over memory for a few, in steps of 4 to 4,096 tokens, with drafts by n-grams.
  void run(Model& model, const ops::Ctx& cx, EngineOptions options, int rounds) {
    options.page_size = cx.on_gpu() ? 16 << any(0, 1) : any(0, 2) == 0 ? 1 : any(2, 8);
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
    run(engine, rounds);
  }

  void run(Engine& engine, int rounds) {
    for (int round = 0; round < rounds; ++round) turn(engine);
    EXPECT_EQ(engine.stats().kv_usage, 0);
    EXPECT_EQ(engine.stats().states_running, 0);
    num_preemptions = engine.stats().num_preemptions;
    num_hits = engine.stats().prefix_cache_hits;
    num_accepted = engine.stats().speculation.num_accepted_tokens;
    num_rejected = engine.stats().speculation.num_draft_tokens - num_accepted;
  }
  int32_t any(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }

  int64_t num_preemptions = 0, num_hits = 0, num_accepted = 0, num_rejected = 0;

 private:
  struct Sent {
    Transcript expected;
    std::vector<int32_t> prompt;
    std::shared_ptr<Transcript> found;
  };

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
    r.sampling = {.temperature = any(0, 1) * 0.7f, .logprobs = any(-1, 2)};
    if (any(0, 3) == 0) r.sampling.repetition_penalty = 1.3f, r.sampling.presence_penalty = 0.4f;
    if (any(0, 3) == 0) r.sampling.logit_bias = {{any(0, 63), 4.0f}, {any(0, 63), -50.0f}};
    if (any(0, 4) == 0) r.stop_ids = {any(0, 63), any(0, 63)}, r.min_tokens = any(0, r.max_tokens);
    if (any(0, 5) == 0) r.prompt_logprobs = 1;
    if (any(0, 4) == 0) r.cache_salt = "salt";
    if (any(0, 2) == 0) r.max_drafts = any(0, 7);
    r.priority = any(0, 1);
    return r;
  }

  void turn(Engine& engine) {
    std::vector<Sent> sent;
    std::vector<RequestId> ids;
    for (int32_t n = any(1, 6); n > 0; --n) {
      std::vector<Request> forks(any(0, 2) == 0 ? 3 : 1, any_request());
      for (size_t i = 0; i < forks.size(); ++i) {
        Request& r = forks[i];
        if (i > 0) r.prompt_logprobs = -1;
        r.sampling.seed = random_();
        const int32_t salt = any(0, 30);  // most have no watcher
        if (salt < 8) r.watcher = std::make_shared<LateWatcher>(0);
        sent.push_back({alone_(r), r.prompt, nullptr});
        if (salt < 8) r.watcher = std::make_shared<LateWatcher>(salt);
        sent.back().found = record(r);
      }
      const auto some = engine.submit_forks(std::move(forks));
      ASSERT_TRUE(some.ok());
      ids.insert(ids.end(), some->begin(), some->end());
      for (int32_t steps = any(0, 10); steps > 0; --steps) engine.step();
      if (any(0, 4) == 0) engine.cancel(ids[any(0, static_cast<int32_t>(ids.size()) - 1)]);
    }
    while (engine.step()) {
    }
    for (auto& [expected, prompt, found] : sent) {
      ASSERT_EQ(found->num_ends, 1);
      if (found->finish == FinishReason::kCanceled) {  // a part of it
        expected.outputs.resize(found->outputs.size(), {});
        if (!expected.outputs.empty()) expected.outputs.back().finish = FinishReason::kNone;
        expected.scores.resize(found->scores.size(), {});
        expected.finish = FinishReason::kCanceled;
      }
      EXPECT_TRUE(*found == expected);
      texts_.push_back(prompt);
      texts_.back().insert(texts_.back().end(), found->ids.begin(), found->ids.end());
      if (texts_.size() > 12) texts_.erase(texts_.begin());
    }
  }

  const std::function<Transcript(const Request&)> alone_;
  std::mt19937 random_;
  std::vector<std::vector<int32_t>> texts_;
};

}  // namespace nibble
