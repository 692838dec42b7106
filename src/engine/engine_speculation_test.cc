// Drafts change nothing but the number of steps: the same text and log-probabilities as without,
// for every pattern of drafts that come true or do not, whatever else is asked for.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <new>
#include <string>

#include "engine/engine.h"
#include "engine/engine_testing.h"
#include "engine/speculation_testing.h"

namespace nibble {
namespace {

// Requests that differ in length, sampling and what they want to know.
std::vector<Request> many_requests(uint64_t seed) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 12; ++i) {
    Request r{.prompt = toy_prompt(1 + i * 13, i), .max_tokens = 40 - i};
    r.sampling.logprobs = i % 4;
    if (i % 3 == 0) r.sampling.temperature = 0;
    if (i % 3 == 1) r.sampling.temperature = 0.8f, r.sampling.top_p = 0.9f;
    if (i % 3 == 2) r.sampling.top_k = 20, r.sampling.min_p = 0.01f;
    if (i % 4 == 3) r.sampling.repetition_penalty = 1.3f, r.sampling.frequency_penalty = 0.2f;
    if (i % 4 == 1) r.sampling.logit_bias = {{7, 2.0f}, {11, -4.0f}};
    if (i % 5 == 4) r.prompt_logprobs = 2;
    if (i % 6 == 5) r.stop_ids = {3, 9, 33}, r.min_tokens = 20;
    r.sampling.seed = seed + i;
    requests.push_back(r);
  }
  return requests;
}

std::vector<Transcript> plain(const std::vector<Request>& requests) {
  std::vector<Transcript> transcripts;
  for (const Request& request : requests) {
    transcripts.push_back(run_alone(toy_options(), request));
  }
  return transcripts;
}

void expect_same(const std::vector<Transcript>& a, const std::vector<Transcript>& b,
                 const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(a[i] == b[i]) << what << ", request " << i;
    EXPECT_EQ(a[i].finish, b[i].finish) << what << ", request " << i;
  }
}

TEST(Speculation, SameTextForEveryPatternOfDrafts) {
  for (const uint64_t seed : {100, 200, 300}) {
    const std::vector<Request> requests = many_requests(seed);
    const std::vector<Transcript> expected = plain(requests);
    for (int32_t k = 1; k <= 7; ++k) {
      for (const uint32_t pattern : {0u, 1u, 0b0110111u, 0b1011111u, ~0u}) {
        const auto drafter = std::make_shared<ScriptedDrafter>(requests, expected, pattern);
        ToyModel model;
        Engine engine(model, {}, speculative(toy_options(), drafter, k));
        expect_same(run_all(engine, requests), expected,
                    "k " + std::to_string(k) + ", pattern " + std::to_string(pattern));
        const SpeculationCounts& counts = engine.stats().speculation;
        EXPECT_GT(counts.num_drafts, 0);
        if (pattern == 0) {
          EXPECT_EQ(counts.num_accepted_tokens, 0);
        }
        if (pattern == ~0u) {
          // But for drafts behind a stop id, in two of the requests.
          EXPECT_GE(counts.num_accepted_tokens, counts.num_draft_tokens - 2 * k);
        }
        EXPECT_EQ(engine.stats().kv_usage, 0);
      }
    }
  }
}

// Every way in which the drafts of three steps in a row can come true.
TEST(Speculation, SameTextForEveryCountOfThreeSteps) {
  Request request{.prompt = toy_prompt(9, 4), .max_tokens = 14};
  request.sampling = {.temperature = 0.9f, .seed = 5, .logprobs = 2};
  const std::vector<Transcript> expected = plain({request});
  constexpr int32_t kMost = 3;
  for (int32_t code = 0; code < 64; ++code) {
    const auto drafter = std::make_shared<ScriptedDrafter>(
        std::vector{request}, expected, std::vector{code % 4, code / 4 % 4, code / 16});
    ToyModel model;
    Engine engine(model, {}, speculative(toy_options(), drafter, kMost));
    expect_same(run_all(engine, {request}), expected, "code " + std::to_string(code));
  }
}

TEST(Speculation, TakesFewerStepsWhereDraftsComeTrue) {
  Request request{.prompt = toy_prompt(4, 4), .max_tokens = 41};
  request.sampling.seed = 1;
  const std::vector<Transcript> expected = plain({request});
  for (const auto& [pattern, steps] : std::map<uint32_t, int64_t>{{~0u, 9}, {0, 41}}) {
    const auto drafter = std::make_shared<ScriptedDrafter>(std::vector{request}, expected, pattern);
    ToyModel model;
    Engine engine(model, {}, speculative(toy_options(), drafter, 4));
    expect_same(run_all(engine, {request}), expected, "");
    EXPECT_EQ(engine.stats().num_steps, steps);  // the prompt's step, then five tokens a step
  }
}

TEST(Speculation, PreemptedOrNot) {
  const std::vector<Request> requests = many_requests(7);
  const std::vector<Transcript> expected = plain(requests);
  for (const int32_t k : {1, 3, 7}) {
    const auto drafter = std::make_shared<ScriptedDrafter>(requests, expected, 0b0110111u);
    ToyModel model;
    EngineOptions tight = speculative(toy_options(), drafter, k);
    tight.max_model_len = 256;
    tight.kv_bytes = Engine::kv_bytes_for(model.info(), tight, 256, 2);
    Engine engine(model, {}, tight);
    expect_same(run_all(engine, requests), expected, "k " + std::to_string(k));
    EXPECT_GE(engine.stats().num_preemptions, 1);
    EXPECT_GT(engine.stats().speculation.num_accepted_tokens, 0);
    EXPECT_EQ(engine.stats().kv_usage, 0);
  }
}

// What a step computed of drafts that did not come true is never found by a later prompt.
TEST(Speculation, PrefixHitsAfterRejectionsAtEveryOffsetOfAPage) {
  const int32_t page = toy_options().page_size;
  for (int32_t k = 1; k <= 7; ++k) {
    for (int32_t offset = 0; offset < 2 * page; ++offset) {
      Request request{.prompt = toy_prompt(16 + offset, 3), .max_tokens = 30};
      request.sampling.seed = 11;
      const std::vector<Transcript> expected = plain({request});
      // All drafts of the first step come true but for the last `offset % (k + 1)`, and so on.
      const auto drafter = std::make_shared<ScriptedDrafter>(
          std::vector{request}, expected, std::vector{offset % (k + 1), k, 0, k / 2});
      ToyModel model;
      Engine engine(model, {}, speculative(toy_options(), drafter, k));
      expect_same(run_all(engine, {request}), expected, "");

      // Whoever goes on from any part of that text computes what a fresh engine would.
      std::vector<int32_t> text = request.prompt;
      text.insert(text.end(), expected[0].ids.begin(), expected[0].ids.end());
      for (int32_t cut = static_cast<int32_t>(text.size()) - page; cut <= std::ssize(text); ++cut) {
        Request next{.prompt = {text.begin(), text.begin() + cut}, .max_tokens = 6};
        next.sampling = {.temperature = 0, .logprobs = 3};
        const Transcript found = run_all(engine, {next})[0];
        EXPECT_GE(found.cached_tokens, cut - 2 * page);
        EXPECT_TRUE(found == run_alone(toy_options(), next)) << "cut " << cut;
      }
    }
  }
}

TEST(Speculation, AnswersToOnePrompt) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 4; ++i) {
    Request r{.prompt = toy_prompt(21, 6), .max_tokens = 25};
    r.sampling = {.temperature = 1, .seed = 40 + i, .logprobs = 1};
    requests.push_back(r);
  }
  const std::vector<Transcript> expected = plain(requests);
  const auto drafter = std::make_shared<ScriptedDrafter>(requests, expected, 0b011u);
  ToyModel model;
  Engine engine(model, {}, speculative(toy_options(), drafter, 3));
  expect_same(run_forks(engine, requests), expected, "");
  EXPECT_GT(engine.stats().speculation.num_accepted_tokens, 0);
}

// Allows every other id, by how many came; ends the text at a given one. Its mask may be late now
// and then.
class PickyWatcher : public TokenWatcher {
 public:
  PickyWatcher(int32_t last, bool is_late) : last_(last), is_late_(is_late) {}
  Watch accept(int32_t id) override {
    EXPECT_EQ((id + num_) % 2, 0) << "against the mask";
    ++num_;
    num_asked_ = 0;
    return id % 16 == last_ ? Watch::kStop : Watch::kGoOn;
  }
  void rollback(int) override { ADD_FAILURE() << "nothing was accepted too early"; }
  bool mask(std::span<uint32_t> bits) override {
    for (uint32_t& word : bits) word &= num_ % 2 == 0 ? 0x55555555u : 0xAAAAAAAAu;
    return true;
  }
  MaskState mask_state() const override {
    const bool is_pending = is_late_ && num_ % 5 == 3 && num_asked_++ == 0;
    return is_pending ? MaskState::kPending : MaskState::kReady;
  }

 private:
  int32_t last_, num_ = 0;
  bool is_late_;
  mutable int32_t num_asked_ = 0;
};

TEST(Speculation, MasksAndStopsOfAWatcher) {
  const auto with_watchers = [](std::vector<Request> requests, bool are_late) {
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].watcher = std::make_shared<PickyWatcher>(static_cast<int32_t>(i % 16), are_late);
    }
    return requests;
  };
  for (const uint64_t seed : {1, 2, 3}) {
    const std::vector<Request> requests = many_requests(seed);
    const std::vector<Transcript> expected = plain(with_watchers(requests, false));
    for (const int32_t k : {1, 2, 5}) {
      const auto drafter = std::make_shared<ScriptedDrafter>(requests, expected, 0b1011111u);
      ToyModel model;
      Engine engine(model, {}, speculative(toy_options(), drafter, k));
      expect_same(run_all(engine, with_watchers(requests, true)), expected,
                  "k " + std::to_string(k));
      EXPECT_GT(engine.stats().speculation.num_accepted_tokens, 0);
    }
  }
}

// Gets no memory for its third token.
class PoorWatcher : public TokenWatcher {
 public:
  Watch accept(int32_t) override {
    if (++num_ == 3) throw std::bad_alloc();
    return Watch::kGoOn;
  }
  void rollback(int) override {}
  bool mask(std::span<uint32_t>) override { return false; }

 private:
  int32_t num_ = 0;
};

TEST(Speculation, MemoryThatIsNotThereEndsOneRequest) {
  const std::vector<Request> requests = many_requests(50);
  const std::vector<Transcript> expected = plain(requests);
  const auto drafter = std::make_shared<ScriptedDrafter>(requests, expected, ~0u);
  std::vector<Request> some = requests;
  some[3].watcher = std::make_shared<PoorWatcher>();
  ToyModel model;
  Engine engine(model, {}, speculative(toy_options(), drafter, 5));
  const std::vector<Transcript> found = run_all(engine, some);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i == 3) {
      EXPECT_EQ(found[i].finish, FinishReason::kError);
      EXPECT_EQ(found[i].ids.size(), 2u);
    } else {
      EXPECT_TRUE(found[i] == expected[i]) << "request " << i;
    }
  }
  EXPECT_EQ(engine.stats().kv_usage, 0);
}

TEST(Speculation, ARequestMaySayNo) {
  Request request{.prompt = toy_prompt(4, 4), .max_tokens = 20, .max_drafts = 0};
  request.sampling.seed = 1;
  const std::vector<Transcript> expected = plain({request});
  const auto drafter = std::make_shared<ScriptedDrafter>(std::vector{request}, expected, ~0u);
  ToyModel model;
  Engine engine(model, {}, speculative(toy_options(), drafter, 4));
  expect_same(run_all(engine, {request}), expected, "");
  EXPECT_EQ(engine.stats().speculation.num_draft_tokens, 0);
}

// As many as are said for so many sequences, of those that run: all end at once.
TEST(Speculation, FewerDraftsInLargeBatches) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 6; ++i) {
    Request r{.prompt = toy_prompt(4, i), .max_tokens = 30};
    r.sampling.seed = 60 + i;
    requests.push_back(r);
  }
  const std::vector<Transcript> expected = plain(requests);
  const auto drafted = [&](int32_t num_seqs) {
    const auto drafter = std::make_shared<ScriptedDrafter>(requests, expected, 0u);
    ToyModel model;
    EngineOptions options = speculative(toy_options(), drafter, 4);
    options.speculation.by_batch = {{1, 4}, {3, 1}, {5, 0}};
    Engine engine(model, {}, options);
    const std::vector<Request> some(requests.begin(), requests.begin() + num_seqs);
    expect_same(run_all(engine, some), {expected.begin(), expected.begin() + num_seqs}, "");
    const SpeculationCounts counts = engine.stats().speculation;
    return std::pair(counts.num_drafts, counts.num_draft_tokens);
  };
  // Of 30 tokens a prompt's step gives the first; the last has nothing behind it, those before it
  // have one to three.
  EXPECT_EQ(drafted(1), std::pair(int64_t{28}, int64_t{4 * 25 + 3 + 2 + 1}));
  EXPECT_EQ(drafted(2), std::pair(int64_t{2 * 28}, int64_t{2 * 106}));
  EXPECT_EQ(drafted(3), std::pair(int64_t{3 * 28}, int64_t{3 * 28}));
  EXPECT_EQ(drafted(4), std::pair(int64_t{4 * 28}, int64_t{4 * 28}));
  EXPECT_EQ(drafted(6), std::pair(int64_t{0}, int64_t{0}));
}

TEST(Speculation, RefusesMoreThanAStepHolds) {
  ToyModel model;
  EngineOptions options = toy_options();
  options.speculation = {.method = SpeculationOptions::Method::kNgram, .num_tokens = 33};
  EXPECT_THROW(Engine(model, {}, options), Error);
  options.speculation.num_tokens = 5;
  options.max_num_seqs = options.max_num_batched_tokens = 5;
  EXPECT_THROW(Engine(model, {}, options), Error);
}

}  // namespace
}  // namespace nibble
