// Drafts by the MTP layers of tests/goldens/mtp in the engine: no text is another for them, and
// they are the same drafts alone, in batches, in chunks and after preemption.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "cpu/thread_pool.h"
#include "engine/engine.h"
#include "engine/engine_testing.h"
#include "models/draft_head.h"

namespace nibble {
namespace {

// What a head finds likeliest, by position and token: drafts and what they are made from.
using Drafts = std::multiset<std::tuple<int32_t, int32_t, int64_t>>;

class RecordingHead : public Model, public DraftHead {
 public:
  explicit RecordingHead(std::unique_ptr<DraftHead> head) : head_(std::move(head)) {}
  Model& model() override { return *this; }
  const std::vector<int32_t>& target_layers() const override { return head_->target_layers(); }
  const std::vector<int32_t>& target_ids() const override { return head_->target_ids(); }
  void set_input(DraftInput input) override { head_->set_input(input); }
  const ModelInfo& info() const override { return head_->model().info(); }
  int64_t scratch_bytes(const ops::Ctx& cx, const StepLimits& limits) const override {
    return head_->model().scratch_bytes(cx, limits);
  }
  void reserve(const ops::Ctx& cx, const StepLimits& limits) override {
    head_->model().reserve(cx, limits);
  }
  Tensor forward(ops::Ctx& cx, const Step& step, const SeqState& kv) override {
    const Tensor logits = head_->model().forward(cx, step, kv);
    for (int32_t r = 0; r < step.num_out; ++r) {
      const float* const row = logits.as<float>() + r * logits.dim(1);
      const int32_t t = step.out_rows[r];
      drafts.emplace(step.positions[t], step.tokens[t],
                     std::max_element(row, row + logits.dim(1)) - row);
    }
    return logits;
  }
  Drafts drafts;

 private:
  std::unique_ptr<DraftHead> head_;
};

class MtpEngine : public testing::TestWithParam<std::pair<const char*, bool>> {
 protected:
  MtpEngine() {
    cx_.pool = &pool_;
    if (GetParam().second) {  // as --exact has it
      cx_.kernels.activations = ops::ActFormat::kBF16;
      cx_.activations = DType::kBF16;
    }
    const std::string goldens = std::string(NIBBLE_SOURCE_DIR) + "/tests/goldens/";
    for (auto* model : {&model_, &plain_})
      *model = load_model(cx_, goldens + "families/" + GetParam().first, {});
    head_ = std::make_shared<RecordingHead>(
        load_draft_head(cx_, {goldens + "mtp/" + GetParam().first}, *model_, {}));
  }

  static EngineOptions options(int32_t step_tokens = 512) {
    return {.max_num_seqs = 8,
            .max_num_batched_tokens = step_tokens,
            .max_model_len = 384,
            .kv_bytes = int64_t{64} << 20};
  }
  EngineOptions drafts(EngineOptions options, int32_t k, bool is_adaptive = false) const {
    options.speculation = {.method = SpeculationOptions::Method::kHead,
                           .num_tokens = k,
                           .is_adaptive = is_adaptive,
                           .head_group = head_->info().groups[0],
                           .head = head_};
    return options;
  }
  std::vector<Request> requests(uint64_t seed = 7) const {
    std::vector<Request> all;
    for (int32_t i = 0; i < 8; ++i) {
      Request r{.prompt = toy_prompt(1 + i * 19, i + static_cast<int32_t>(seed),
                                     model_->info().vocab_size),
                .max_tokens = 30 - 2 * i};
      r.sampling = {
          .temperature = 0.4f * static_cast<float>(i % 4), .seed = seed + i, .logprobs = 2};
      if (i % 4 == 3) r.sampling.top_p = 0.9f, r.sampling.repetition_penalty = 1.1f;
      all.push_back(r);
    }
    return all;
  }
  std::vector<Transcript> alone(const std::vector<Request>& requests) {
    std::vector<Transcript> all;
    for (const Request& r : requests) all.push_back(run_alone(*plain_, cx_, options(), r));
    return all;
  }
  static void expect_same(const std::vector<Transcript>& found,
                          const std::vector<Transcript>& expected, const std::string& what) {
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(found[i].error, "");
      EXPECT_TRUE(found[i] == expected[i]) << what << ", request " << i;
    }
  }

  cpu::ThreadPool pool_{1};
  ops::Ctx cx_;
  std::unique_ptr<Model> model_, plain_;  // two, as an engine's model has one engine at a time
  std::shared_ptr<RecordingHead> head_;
};

TEST_P(MtpEngine, SameTextForEveryNumberOfDrafts) {
  for (const uint64_t seed : {7, 300}) {
    const std::vector<Request> all = requests(seed);
    const std::vector<Transcript> expected = alone(all);
    for (int32_t k = 1; k <= 7; ++k) {
      // Prompts in chunks of other sizes, beside decodes with drafts.
      Engine engine(*model_, cx_, drafts(options(96 - 9 * k), k));
      const std::string what = "k " + std::to_string(k);
      expect_same(run_all(engine, all), expected, what);
      expect_same(run_all(engine, all), expected, what + ", texts known");
      expect_same(run_all(engine, all), expected, what + ", after hits");
      EXPECT_GT(engine.stats().prefix_cache_hits, 0);
      EXPECT_GT(engine.stats().speculation.num_draft_tokens, 0);
      EXPECT_EQ(engine.stats().kv_usage, 0);
      EXPECT_EQ(engine.stats().states_running, 0);
    }
    EngineOptions drawn = drafts(options(), 3);
    drawn.speculation.draws_drafts = true;
    Engine draws(*model_, cx_, drawn);
    expect_same(run_all(draws, all), expected, "drawn");
    Engine adaptive(*model_, cx_, drafts(options(), 4, true));
    expect_same(run_all(adaptive, all), expected, "adaptive");
  }
}

// Where a head is fed another row, token or page, or a state was cut at another token, some drafts
// are others: one in 96 is the same by chance. All prompts fit into one step, as a step with drafts
// beside a prompt is too long to be replayed.
TEST_P(MtpEngine, TheSameDraftsHoweverRequestsMeet) {
  const std::vector<Request> all = requests();
  const auto drafts_of = [&](const EngineOptions& options, const std::vector<Request>& requests) {
    head_->drafts.clear();
    Engine engine(*model_, cx_, options);
    run_all(engine, requests);
    return head_->drafts;
  };
  EngineOptions plain = drafts(options(1024), 3);
  plain.prefix_caching = false;
  Drafts expected;
  for (const Request& request : all) expected.merge(drafts_of(plain, {request}));
  EXPECT_GT(expected.size(), 200u);
  EXPECT_EQ(drafts_of(plain, all), expected) << "batch";
  EngineOptions fine = plain;
  fine.max_num_batched_tokens = 23;
  Drafts chunked;
  for (const Request& request : all) chunked.merge(drafts_of(fine, {request}));
  EXPECT_EQ(chunked, expected) << "chunks";
}

TEST_P(MtpEngine, SameTextAfterPreemptionAndInForks) {
  EngineOptions tight = drafts(options(64), 3);
  tight.max_model_len = 224;
  tight.prefix_caching = false;
  const int32_t pages = tight.max_model_len / tight.page_size;
  tight.kv_bytes = Engine::kv_bytes_for(model_->info(), tight, tight.max_model_len, 8);
  for (const LayerGroup& group : model_->info().groups)  // pages of one sequence, all states
    tight.kv_bytes -=
        7 * pages * page_bytes(group, {.page_size = tight.page_size, .dtype = tight.kv_dtype});
  tight.kv_bytes -=
      7 * pages *
      page_bytes(head_->info().groups[0], {.page_size = tight.page_size, .dtype = tight.kv_dtype});
  std::vector<Request> long_ones;
  for (int32_t i = 0; i < 6; ++i) {
    long_ones.push_back({.prompt = toy_prompt(5 + i, i, model_->info().vocab_size)});
    long_ones.back().max_tokens = 80;
    long_ones.back().sampling.seed = i;
  }
  Engine small(*model_, cx_, tight);
  expect_same(run_all(small, long_ones), alone(long_ones), "preempted");
  EXPECT_GE(small.stats().num_preemptions, 1);

  std::vector<Request> forks(3, requests()[5]);
  for (size_t i = 0; i < forks.size(); ++i)
    forks[i].sampling = {.temperature = 1.0f, .seed = 90 + i};
  Engine engine(*model_, cx_, drafts(options(), 3));
  expect_same(run_forks(engine, forks), alone(forks), "forks");
}

// Each turn of a chat goes on from the state behind the last answer, at any offset of a page.
TEST_P(MtpEngine, TurnsOfAChat) {
  Engine engine(*model_, cx_, drafts(options(), 3));
  Request turn{.prompt = toy_prompt(30, 1, model_->info().vocab_size)};
  turn.sampling = {.temperature = 0, .logprobs = 3};
  for (int32_t i = 0; i < 8; ++i) {
    turn.max_tokens = 9 + 4 * i;
    const Transcript answer = run_all(engine, {turn})[0];
    expect_same({answer}, alone({turn}), "turn " + std::to_string(i));
    EXPECT_EQ(answer.cached_tokens, i > 0 ? std::ssize(turn.prompt) - 3 : 0);
    turn.prompt.insert(turn.prompt.end(), answer.ids.begin(), answer.ids.end());
    turn.prompt.insert(turn.prompt.end(), {i, i + 1});
  }
}

// The model that ships, as --exact has it, with drafts of some ids in any order.
TEST(MtpEngineOfSomeIds, SameTextAsWithout) {
  cpu::ThreadPool pool{1};
  ops::Ctx cx;
  cx.pool = &pool;
  cx.kernels.activations = ops::ActFormat::kBF16, cx.kernels.exact = true;
  cx.activations = DType::kBF16;
  const std::string path = std::string(NIBBLE_SOURCE_DIR) + "/models/nibble-tiny-qwen3-next";
  const auto model = load_model(cx, path, {});
  EngineOptions options{.max_num_seqs = 4,
                        .max_num_batched_tokens = 128,
                        .max_model_len = 256,
                        .kv_bytes = int64_t{64} << 20};
  std::vector<Request> requests;
  std::vector<Transcript> expected;
  for (int32_t i = 0; i < 4; ++i) {
    requests.push_back({.prompt = toy_prompt(3 + i * 11, i, 600), .max_tokens = 40});
    requests.back().sampling = {.temperature = i == 3 ? 0.8f : 0.0f, .seed = 5};
    expected.push_back(run_alone(*model, cx, options, requests.back()));
  }
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 1024; ++i) ids.push_back((i * 7 + 3) % 1024);
  int64_t accepted[2] = {};
  for (const bool has_some : {true, false})
    for (int32_t k = 1; k <= 3; ++k)
      for (const bool draws : {false, true}) {
        const std::shared_ptr<DraftHead> head =
            load_draft_head(cx, {path, has_some ? ids : std::vector<int32_t>{}}, *model, {});
        EXPECT_EQ(head->model().info().vocab_size, has_some ? 1024 : model->info().vocab_size);
        options.speculation = {.method = SpeculationOptions::Method::kHead,
                               .num_tokens = k,
                               .is_adaptive = false,
                               .draws_drafts = draws,
                               .head_group = head->model().info().groups[0],
                               .head = head};
        Engine engine(*model, cx, options);
        const std::vector<Transcript> found = run_all(engine, requests);
        for (size_t i = 0; i < requests.size(); ++i)
          EXPECT_TRUE(found[i] == expected[i]) << "k " << k << ", request " << i;
        accepted[has_some] += engine.stats().speculation.num_accepted_tokens;
      }
  EXPECT_GT(accepted[true], 20);
  EXPECT_NE(accepted[true], accepted[false]);
}

INSTANTIATE_TEST_SUITE_P(
    Models, MtpEngine,
    testing::Values(std::pair{"qwen3_next", false}, std::pair{"qwen3_next", true},
                    std::pair{"qwen3_5_moe", false}, std::pair{"qwen3_5", false}),
    [](const auto& info) {
      return std::string(info.param.first) + (info.param.second ? "_bf16" : "");
    });

}  // namespace
}  // namespace nibble
