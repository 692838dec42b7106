#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "engine/engine_testing.h"

namespace nibble {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

Request greedy(int32_t prompt_length, int32_t salt, int32_t max_tokens) {
  return {.prompt = toy_prompt(prompt_length, salt),
          .sampling = {.temperature = 0},
          .max_tokens = max_tokens};
}

TEST(Engine, EndsAtMaxTokens) {
  const Transcript t = run_alone(toy_options(), greedy(10, 1, 7));
  EXPECT_EQ(t.ids.size(), 7u);
  EXPECT_EQ(t.finish, FinishReason::kLength);
  EXPECT_EQ(t.outputs.back().finish, FinishReason::kLength);
}

TEST(Engine, ContinuingFromItsOwnOutputGivesTheSameText) {
  const Transcript whole = run_alone(toy_options(), greedy(10, 1, 20));
  Request rest = greedy(10, 1, 12);
  rest.prompt.insert(rest.prompt.end(), whole.ids.begin(), whole.ids.begin() + 8);
  const Transcript second = run_alone(toy_options(), rest);
  EXPECT_EQ(second.ids, std::vector<int32_t>(whole.ids.begin() + 8, whole.ids.end()));
}

TEST(Engine, StopIdIsTheLastIdReported) {
  const Transcript free = run_alone(toy_options(), greedy(10, 1, 20));
  Request request = greedy(10, 1, 20);
  request.stop_ids = {free.ids[5]};
  const Transcript t = run_alone(toy_options(), request);
  const auto first = std::find(free.ids.begin(), free.ids.end(), free.ids[5]);
  EXPECT_EQ(t.ids, std::vector<int32_t>(free.ids.begin(), first + 1));
  EXPECT_EQ(t.outputs.back().finish, FinishReason::kStop);
}

TEST(Engine, MinTokensMasksStopIds) {
  const Transcript free = run_alone(toy_options(), greedy(10, 1, 20));
  Request request = greedy(10, 1, 20);
  request.stop_ids = {free.ids[0]};
  EXPECT_EQ(run_alone(toy_options(), request).ids.size(), 1u);
  request.min_tokens = 6;
  const Transcript t = run_alone(toy_options(), request);
  ASSERT_GE(t.ids.size(), 6u);
  for (size_t i = 0; i < 6; ++i) EXPECT_NE(t.ids[i], free.ids[0]) << i;
}

// Allows one id per position, then stops.
class ScriptWatcher : public TokenWatcher {
 public:
  explicit ScriptWatcher(std::vector<int32_t> script) : script_(std::move(script)) {}
  Watch accept(int32_t id) override {
    accepted.push_back(id);
    return accepted.size() == script_.size() ? Watch::kStop : Watch::kGoOn;
  }
  void rollback(int n) override { accepted.resize(accepted.size() - n); }
  bool mask(std::span<uint32_t> bits) override {
    const int32_t id = script_[accepted.size()];
    if (id < 0) return false;
    std::fill(bits.begin(), bits.end(), 0);
    bits[id / 32] = 1u << (id % 32);
    return true;
  }
  std::vector<int32_t> accepted;

 private:
  std::vector<int32_t> script_;
};

TEST(Engine, WatcherMasksSeesEveryIdAndStops) {
  Request request = greedy(10, 1, 20);
  request.sampling.temperature = 1;
  auto watcher = std::make_shared<ScriptWatcher>(std::vector<int32_t>{33, 2, -1, 63});
  request.watcher = watcher;
  const Transcript t = run_alone(toy_options(), request);
  ASSERT_EQ(t.ids.size(), 4u);
  EXPECT_EQ(t.ids[0], 33);
  EXPECT_EQ(t.ids[1], 2);
  EXPECT_EQ(t.ids[3], 63);
  EXPECT_EQ(t.finish, FinishReason::kStop);
  EXPECT_EQ(watcher->accepted, t.ids);
}

// As a ScriptWatcher; each mask comes, or fails, when the test says so.
class SlowWatcher : public ScriptWatcher {
 public:
  using ScriptWatcher::ScriptWatcher;
  bool mask(std::span<uint32_t> bits) override {
    EXPECT_EQ(state, MaskState::kReady);
    return ScriptWatcher::mask(bits);
  }
  Watch accept(int32_t id) override {
    state = MaskState::kPending;
    return ScriptWatcher::accept(id);
  }
  MaskState mask_state() const override { return state; }
  std::string fault() const override { return "took too long"; }
  void on_mask(std::function<void()> c) override { changed = std::move(c); }
  void become(MaskState next) {
    state = next;
    changed();
  }
  MaskState state = MaskState::kPending;
  std::function<void()> changed;
};

TEST(Engine, OneWhoseMaskIsLateWaitsAloneAndItsTextIsTheSame) {
  const std::vector<int32_t> script{33, 2, -1, 63, -1, -1, 7};
  Request slow = greedy(23, 1, 20);
  slow.watcher = std::make_shared<ScriptWatcher>(script);
  const Transcript expected = run_alone(toy_options(), slow);
  const Transcript other_alone = run_alone(toy_options(), greedy(9, 2, 40));
  for (const bool chunked : {true, false}) {
    EngineOptions options = toy_options();
    options.chunked_prefill = chunked;
    options.max_model_len = 64;
    options.prefix_caching = chunked;
    ToyModel model;
    Engine engine(model, {}, options);
    auto watcher = std::make_shared<SlowWatcher>(script);
    slow.watcher = watcher;
    Request other = greedy(9, 2, 40);
    const auto other_transcript = record(other);
    const auto transcript = record(slow);
    ASSERT_TRUE(engine.submit(other).ok());
    ASSERT_TRUE(engine.submit(slow).ok());
    for (size_t k = 0; k < script.size(); ++k) {
      const size_t before = other_transcript->ids.size();
      for (int i = 0; i < 4; ++i) EXPECT_TRUE(engine.step());
      EXPECT_EQ(other_transcript->ids.size(), before + 4);  // at its own pace
      EXPECT_EQ(transcript->ids.size(), k);
      watcher->become(MaskState::kReady);
      EXPECT_TRUE(engine.step());
      EXPECT_EQ(transcript->ids.size(), k + 1);
    }
    while (engine.step()) {
    }
    EXPECT_EQ(*transcript, expected);
    EXPECT_EQ(*other_transcript, other_alone);
    EXPECT_EQ(engine.stats().prompt_tokens, 23 + 9);
  }
}

TEST(Engine, OneWhoseMaskNeverComesFailsAlone) {
  ToyModel model;
  Engine engine(model, {}, toy_options());
  auto watcher = std::make_shared<SlowWatcher>(std::vector<int32_t>{33, 2, 63});
  Request slow = greedy(10, 1, 20);
  slow.watcher = watcher;
  const auto transcript = record(slow);
  ASSERT_TRUE(engine.submit(slow).ok());
  watcher->become(MaskState::kReady);
  EXPECT_TRUE(engine.step());
  EXPECT_EQ(transcript->ids, std::vector<int32_t>{33});
  EXPECT_TRUE(engine.step());   // alone, it is waited for a while
  EXPECT_FALSE(engine.step());  // then there is nothing to do
  EXPECT_EQ(transcript->num_ends, 0);
  watcher->become(MaskState::kFailed);
  EXPECT_TRUE(engine.step());
  EXPECT_EQ(transcript->finish, FinishReason::kError);
  EXPECT_EQ(transcript->error, "took too long");
  EXPECT_EQ(engine.stats().num_running, 0);
}

TEST(Engine, MaskedIdsAreNeverSampledWhateverTheBias) {
  const Transcript free = run_alone(toy_options(), greedy(10, 1, 20));
  EngineOptions options = toy_options();
  options.masked_ids = {free.ids[0]};
  Request request = greedy(10, 1, 20);
  request.sampling.logit_bias = {{free.ids[0], 100.0f}};
  EXPECT_THAT(run_alone(options, request).ids, Each(::testing::Ne(free.ids[0])));
}

TEST(Engine, CancelFreesPagesBeforeTheNextStep) {
  ToyModel model;
  Engine engine(model, {}, toy_options());
  Request request = greedy(100, 1, 50);
  const auto transcript = record(request);
  const Result<RequestId> id = engine.submit(std::move(request));
  for (int i = 0; i < 4; ++i) engine.step();
  EXPECT_GT(engine.stats().kv_usage, 0);
  const size_t so_far = transcript->ids.size();
  engine.cancel(*id);
  EXPECT_FALSE(engine.step());
  EXPECT_EQ(engine.stats().kv_usage, 0);
  EXPECT_EQ(engine.stats().num_running, 0);
  EXPECT_EQ(transcript->finish, FinishReason::kCanceled);
  EXPECT_EQ(transcript->num_ends, 1);
  EXPECT_EQ(transcript->ids.size(), so_far);
  engine.cancel(*id);  // has ended: nothing happens
  engine.step();
  EXPECT_EQ(transcript->num_ends, 1);
}

TEST(Engine, DestructionCancelsWhatRuns) {
  ToyModel model;
  std::shared_ptr<Transcript> running, waiting;
  {
    Engine engine(model, {}, toy_options());
    Request a = greedy(10, 1, 50);
    running = record(a);
    CHECK(engine.submit(std::move(a)).ok());
    engine.step();
    Request b = greedy(10, 1, 50);
    waiting = record(b);
    CHECK(engine.submit(std::move(b)).ok());
  }
  EXPECT_EQ(running->finish, FinishReason::kCanceled);
  EXPECT_EQ(waiting->finish, FinishReason::kCanceled);
}

// Made in turn they may have it; one whose activations another has replaced must not run.
TEST(Engine, AModelIsOneEnginesAtATime) {
  ToyModel model;
  Engine first(model, {}, toy_options());
  EXPECT_EQ(run_all(first, {greedy(10, 1, 5)})[0].ids.size(), 5u);
  {
    Engine second(model, {}, toy_options());
    EXPECT_EQ(run_all(second, {greedy(10, 1, 5)})[0].ids.size(), 5u);
  }
  EXPECT_DEATH(run_all(first, {greedy(10, 1, 5)}), "CHECK failed: .another_engine_has_the_model");
  Engine third(model, {}, toy_options());
  EXPECT_EQ(run_all(third, {greedy(10, 1, 5)})[0].ids.size(), 5u);
}

// What is refused before it has touched the model leaves it to the one before.
TEST(Engine, AnEngineThatIsRefusedTakesNoModel) {
  ToyModel model;
  Engine first(model, {}, toy_options());
  EngineOptions wrong = toy_options();
  wrong.max_num_seqs = 0;
  EXPECT_THROW(Engine(model, {}, wrong), Error);
  EXPECT_EQ(run_all(first, {greedy(10, 1, 5)})[0].ids.size(), 5u);
}

TEST(Engine, AThrowingModelFailsEveryRequest) {
  ToyModel model;
  model.throw_in_step = 2;
  EngineOptions options = toy_options();
  options.max_num_seqs = 1;
  Engine engine(model, {}, options);
  std::vector<Transcript> all = run_all(engine, {greedy(10, 1, 50), greedy(10, 2, 50)});
  for (const Transcript& t : all) {
    EXPECT_EQ(t.finish, FinishReason::kError);
    EXPECT_THAT(t.error, HasSubstr("the toy broke"));
  }
  EXPECT_TRUE(engine.stats().failed);
  EXPECT_EQ(engine.stats().kv_usage, 0);
  Request late = greedy(10, 1, 1);
  record(late);
  EXPECT_FALSE(engine.submit(std::move(late)).ok());
}

TEST(Engine, NaNLogitsEndTheRequestThatHasThem) {
  for (float temperature : {0.0f, 1.0f}) {
    ToyModel model;
    model.nan_in_step = 3;  // in the first row: the older request's
    Engine engine(model, {}, toy_options());
    Request bad = greedy(10, 1, 10);
    bad.sampling.temperature = temperature;
    const std::vector<Transcript> all = run_all(engine, {bad, greedy(10, 2, 10)});
    EXPECT_EQ(all[0].finish, FinishReason::kError);
    EXPECT_THAT(all[0].error, HasSubstr("not numbers"));
    EXPECT_FALSE(all[0].outputs.back().is_bad_request);
    EXPECT_EQ(all[0].ids.size(), 3u);
    EXPECT_EQ(all[1].finish, FinishReason::kLength);
  }
}

struct Greedy final : TokenWatcher {
  explicit Greedy(int from) : step(from) {}
  Watch accept(int32_t) override {
    if (--step == 0) throw std::bad_alloc();
    return Watch::kGoOn;
  }
  void rollback(int) override {}
  bool mask(std::span<uint32_t>) override { return false; }
  int step;
};

TEST(Engine, MissingMemoryEndsTheRequestThatMissesIt) {
  ToyModel model;
  Engine engine(model, {}, toy_options());
  std::vector<Request> requests(5, greedy(10, 1, 10));
  requests[1].watcher = std::make_shared<Greedy>(4);
  requests[3].max_tokens = 0;
  requests[3].prompt_logprobs = 1;
  std::vector<std::shared_ptr<Transcript>> all;
  for (Request& request : requests) all.push_back(record(request));
  requests[3].on_prompt_logprobs = [](const PromptLogprobs&) { throw std::bad_alloc(); };
  for (Request& request : requests) ASSERT_TRUE(engine.submit(std::move(request)).ok());
  while (engine.step()) {
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const bool missed = i == 1 || i == 3;
    EXPECT_EQ(all[i]->num_ends, 1);
    EXPECT_EQ(all[i]->finish, missed ? FinishReason::kError : FinishReason::kLength) << i;
    EXPECT_EQ(all[i]->ids.size(), i == 1 ? 3u : i == 3 ? 0u : 10u);
  }
  EXPECT_THAT(all[1]->error, HasSubstr("no memory"));
  EXPECT_FALSE(engine.stats().failed);
  EXPECT_EQ(engine.stats().kv_usage, 0);
}

TEST(Engine, PromptLogprobsMatchTheLogprobsOfSampling) {
  Request request = greedy(10, 1, 20);
  request.sampling.logprobs = 3;
  const Transcript sampled = run_alone(toy_options(), request);
  Request scored{.prompt = request.prompt, .prompt_logprobs = 3};
  scored.prompt.insert(scored.prompt.end(), sampled.ids.begin(), sampled.ids.end());
  const Transcript t = run_alone(toy_options(), scored);
  ASSERT_EQ(t.scores.size(), 30u);
  EXPECT_EQ(t.finish, FinishReason::kLength);
  EXPECT_TRUE(t.ids.empty());
  for (int32_t i = 0; i < 30; ++i) {
    EXPECT_EQ(t.scores[i].position, i);
    EXPECT_EQ(t.scores[i].id, scored.prompt[i]);
    if (i < 9 || i == 29) continue;
    EXPECT_EQ(t.scores[i].next_logprob, sampled.outputs[i - 9].logprob) << i;
    EXPECT_TRUE(t.scores[i].top == sampled.outputs[i - 9].top) << i;
    EXPECT_EQ(t.scores[i].top[0].id, sampled.ids[i - 9]) << i;
  }
  EXPECT_NE(t.scores[29].next_logprob, t.scores[29].next_logprob);
}

TEST(Engine, LogprobsOfAWholeRowSumToOne) {
  Request request = greedy(10, 1, 2);
  request.sampling.logprobs = ToyModel::kVocab;
  const Transcript t = run_alone(toy_options(), request);
  double sum = 0;
  for (const TokenLogprob& top : t.outputs[0].top) sum += std::exp(top.logprob);
  // 64 terms below 1, each with the relative error of a float logprob of magnitude up to 32:
  // 32 * 2^-24 each in the exponent, so 2e-6 of the sum.
  EXPECT_NEAR(sum, 1, 2e-6);
}

TEST(Engine, RefusesBadOptions) {
  ToyModel model;
  EngineOptions options = toy_options();
  options.max_num_batched_tokens = 8;
  EXPECT_THROW(Engine(model, {}, options), Error);
  options = toy_options();
  options.max_model_len = 8193;
  EXPECT_THROW(Engine(model, {}, options), Error);
  options = toy_options();
  options.kv_bytes = 4096;
  EXPECT_THROW(Engine(model, {}, options), Error);
  options = toy_options();
  options.chunked_prefill = false;  // 64 tokens a step, and prompts of up to 511
  EXPECT_THROW(Engine(model, {}, options), Error);
}

TEST(Engine, WholePromptsGiveTheSameTextAsChunks) {
  ToyModel model;
  std::vector<Request> requests;
  for (int i = 0; i < 12; ++i) requests.push_back(greedy(400 - 33 * i, i, 30));
  EngineOptions options = toy_options();
  Engine chunked(model, {}, options);
  const auto expected = run_all(chunked, requests);
  options.chunked_prefill = false;
  options.max_num_batched_tokens = options.max_model_len;
  Engine whole(model, {}, options);
  const auto answers = run_all(whole, requests);
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(answers[i].ids, expected[i].ids) << i;
}

struct Hostile {
  const char* text;  // of the refusal
  void (*spoil)(Request&);
};

TEST(Engine, RefusesHostileRequests) {
  static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  static constexpr float kInf = std::numeric_limits<float>::infinity();
  static constexpr int32_t kHuge = std::numeric_limits<int32_t>::max();
  const Hostile kCases[] = {
      {"prompt is empty", [](Request& r) { r.prompt.clear(); }},
      {"the prompt contains 64", [](Request& r) { r.prompt[3] = 64; }},
      {"the prompt contains -1", [](Request& r) { r.prompt[3] = -1; }},
      {"max_tokens is 0", [](Request& r) { r.max_tokens = 0; }},
      {"max_tokens is -5", [](Request& r) { r.max_tokens = -5; }},
      {"context of 512", [](Request& r) { r.max_tokens = kHuge; }},
      {"context of 512", [](Request& r) { r.max_tokens = 503; }},
      {"min_tokens is 9", [](Request& r) { r.min_tokens = 9; }},
      {"min_tokens is -1", [](Request& r) { r.min_tokens = -1; }},
      {"stop_ids contains 999",
       [](Request& r) {
         r.stop_ids = {1, 999};
       }},
      {"temperature is nan", [](Request& r) { r.sampling.temperature = kNan; }},
      {"temperature is inf", [](Request& r) { r.sampling.temperature = kInf; }},
      {"temperature is -0.5", [](Request& r) { r.sampling.temperature = -0.5f; }},
      {"top_p is 0;", [](Request& r) { r.sampling.top_p = 0; }},
      {"top_p is -1;", [](Request& r) { r.sampling.top_p = -1; }},
      {"top_p is nan", [](Request& r) { r.sampling.top_p = kNan; }},
      {"top_p is 1.5", [](Request& r) { r.sampling.top_p = 1.5f; }},
      {"top_k is -2", [](Request& r) { r.sampling.top_k = -2; }},
      {"min_p is 2", [](Request& r) { r.sampling.min_p = 2; }},
      {"min_p is nan", [](Request& r) { r.sampling.min_p = kNan; }},
      {"repetition_penalty is 0", [](Request& r) { r.sampling.repetition_penalty = 0; }},
      {"repetition_penalty is nan", [](Request& r) { r.sampling.repetition_penalty = kNan; }},
      {"presence_penalty is inf", [](Request& r) { r.sampling.presence_penalty = kInf; }},
      {"frequency_penalty is nan", [](Request& r) { r.sampling.frequency_penalty = kNan; }},
      {"logit_bias contains 2147483647",
       [](Request& r) {
         r.sampling.logit_bias = {{kHuge, 1.0f}};
       }},
      {"logit_bias of 3 is not",
       [](Request& r) {
         r.sampling.logit_bias = {{3, kNan}};
       }},
      {"logprobs is 2147483647", [](Request& r) { r.sampling.logprobs = kHuge; }},
      {"prompt_logprobs is -7", [](Request& r) { r.prompt_logprobs = -7; }},
      {"the length of cache_salt is 257", [](Request& r) { r.cache_salt.assign(257, 0); }},
  };
  ToyModel model;
  Engine engine(model, {}, toy_options());
  for (const Hostile& hostile : kCases) {
    Request request = greedy(10, 1, 5);
    record(request);
    hostile.spoil(request);
    const Result<RequestId> id = engine.submit(std::move(request));
    ASSERT_FALSE(id.ok()) << hostile.text;
    EXPECT_THAT(id.error(), HasSubstr(hostile.text));
  }
  EXPECT_FALSE(engine.step());
}

TEST(Engine, ExtremeButLegalParametersGiveText) {
  constexpr float kMax = std::numeric_limits<float>::max();
  constexpr float kTiny = std::numeric_limits<float>::denorm_min();
  const SamplingParams kCases[] = {
      {.temperature = kTiny},
      {.temperature = kMax},
      {.top_p = kTiny},
      {.min_p = 1},
      {.temperature = kMax, .min_p = kTiny},
      {.top_k = std::numeric_limits<int32_t>::max()},
      {.repetition_penalty = kTiny},
      {.repetition_penalty = kMax},
      {.presence_penalty = -kMax, .frequency_penalty = -kMax},
      {.presence_penalty = kMax, .frequency_penalty = kMax},
      {.logit_bias = {{1, kMax}, {1, kMax}, {2, -kMax}}},
  };
  ToyModel model;
  Engine engine(model, {}, toy_options());
  std::vector<Request> requests;
  for (const SamplingParams& sampling : kCases) {
    requests.push_back({.prompt = toy_prompt(5, 3), .sampling = sampling, .max_tokens = 10});
  }
  for (const Transcript& t : run_all(engine, requests)) {
    EXPECT_EQ(t.finish, FinishReason::kLength);
    EXPECT_EQ(t.ids.size(), 10u);
  }
}

}  // namespace
}  // namespace nibble
