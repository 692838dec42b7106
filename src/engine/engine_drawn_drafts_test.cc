// Drafts that a head draws by random numbers of their own, verified by the rules of verification.h:
// what is said has the distribution of what is said without them, whatever is asked of a token, and
// at temperature 0 it is the same text.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_testing.h"
#include "engine/sampler.h"
#include "models/draft_head.h"

namespace nibble {
namespace {

using Ids = std::vector<int32_t>;
constexpr int32_t kTokens = 5, kDrafts = 3;

// Drafts from a distribution that has little to do with the model's, over a vocabulary of its own.
class RoughHead : public Model, public DraftHead {
 public:
  // All alike where it is even.
  explicit RoughHead(Ids ids, bool is_even = false) : ids_(std::move(ids)), is_even_(is_even) {
    info_.num_layers = 1;
    info_.vocab_size = static_cast<int32_t>(ids_.size());
    info_.groups = {group()};
  }
  static LayerGroup group() { return {.layers = {0}, .num_kv_heads = 1, .head_dim = 2}; }

  Model& model() override { return *this; }
  const ModelInfo& info() const override { return info_; }
  int64_t scratch_bytes(const ops::Ctx&, const StepLimits&) const override { return 0; }
  void reserve(const ops::Ctx&, const StepLimits& limits) override {
    logits_.resize(int64_t{limits.max_out} * info_.vocab_size);
  }
  const Ids& target_layers() const override { return layers_; }
  const Ids& target_ids() const override { return ids_; }
  void set_input(DraftInput) override {}
  Tensor forward(ops::Ctx&, const Step& step, const SeqState&) override {
    for (int32_t r = 0; r < step.num_out; ++r) {
      const int32_t t = step.out_rows[r], of_text = step.tokens[t] * 3 + step.positions[t] * 5;
      for (int32_t v = 0; v < info_.vocab_size; ++v)
        logits_[r * info_.vocab_size + v] =
            is_even_ ? 0 : 1.5f * std::sin(static_cast<float>(of_text + v * 7));
    }
    return make_tensor(logits_.data(), DType::kF32, {step.num_out, info_.vocab_size});
  }

 private:
  Ids ids_, layers_ = {1};
  bool is_even_;
  ModelInfo info_;
  std::vector<float> logits_;
};

EngineOptions drawn(EngineOptions options, std::shared_ptr<RoughHead> head, VerificationRule rule) {
  options.speculation = {.method = SpeculationOptions::Method::kHead,
                         .num_tokens = kDrafts,
                         .is_adaptive = false,
                         .draws_drafts = true,
                         .drawn_rule = rule,
                         .head_group = RoughHead::group(),
                         .head_vocab_size = head->info().vocab_size,
                         .head = head};
  return options;
}

constexpr VerificationRule kRules[] = {VerificationRule::kStandard, VerificationRule::kBlock};
const char* name_of(VerificationRule rule) {
  return rule == VerificationRule::kBlock ? "block" : "standard";
}

// Ids below 32 and above in turn.
class TurnWatcher : public TokenWatcher {
 public:
  Watch accept(int32_t id) override {
    EXPECT_EQ(id < 32, num_ % 2 == 0) << "against the mask";
    ++num_;
    return Watch::kGoOn;
  }
  void rollback(int) override { ADD_FAILURE() << "nothing was accepted too early"; }
  bool mask(std::span<uint32_t> bits) override {
    bits[1 - num_ % 2] = 0;
    return true;
  }

 private:
  int32_t num_ = 0;
};

struct Asked {
  const char* name;
  SamplingParams sampling;
  Ids stop_ids;
  int32_t min_tokens;
  bool has_masks;
};

// Of the model's 64 ids a few are likely, so that texts are few.
Asked of_few(const char* name, const Ids& ids = {3, 9, 17, 40}) {
  Asked asked{};
  asked.name = name;
  for (const int32_t id : ids) asked.sampling.logit_bias.push_back({id, 14.f});
  return asked;
}

std::vector<Asked> all_asked() {
  std::vector<Asked> all = {of_few("temperature 1"),
                            of_few("temperature 1.6, penalties"),
                            of_few("temperature 0.7, top p, min p"),
                            of_few("top k"),
                            of_few("stops"),
                            of_few("masks", {3, 9, 40, 50})};
  SamplingParams& penalized = all[1].sampling;
  penalized.temperature = 1.6f, penalized.repetition_penalty = 1.1f;
  penalized.presence_penalty = 0.6f, penalized.frequency_penalty = 0.9f;
  SamplingParams& cut = all[2].sampling;
  cut.temperature = 0.7f, cut.top_p = 0.95f, cut.min_p = 0.02f;
  all[3].sampling.top_k = 3;
  all[4].stop_ids = {9}, all[4].min_tokens = 3;
  all[5].has_masks = true;
  return all;
}

Request request_for(const Asked& asked, uint64_t seed) {
  Request r{.prompt = toy_prompt(4, 2), .max_tokens = kTokens};
  r.sampling = asked.sampling;
  r.sampling.seed = seed;
  r.stop_ids = asked.stop_ids, r.min_tokens = asked.min_tokens;
  if (asked.has_masks) r.watcher = std::make_shared<TurnWatcher>();
  return r;
}

std::map<Ids, int32_t> texts_of(Engine& engine, const Asked& asked, int32_t num, uint64_t seed) {
  std::map<Ids, int32_t> counts;
  constexpr int32_t kAtOnce = 500;
  for (int32_t begin = 0; begin < num; begin += kAtOnce) {
    std::vector<Request> requests;
    for (int32_t i = 0; i < kAtOnce; ++i) requests.push_back(request_for(asked, seed + begin + i));
    for (const Transcript& t : run_all(engine, requests)) {
      EXPECT_EQ(t.error, "");
      ++counts[t.ids];
    }
  }
  return counts;
}

// Above it once in ten thousand (Wilson and Hilferty's approximation).
double chi_square_limit(double degrees) {
  constexpr double kZ = 3.719;
  const double part = 2 / (9 * degrees);
  return degrees * std::pow(1 - part + kZ * std::sqrt(part), 3);
}

// Two samples of the same size. Rare texts count together.
void expect_alike(const std::map<Ids, int32_t>& a, const std::map<Ids, int32_t>& b,
                  const std::string& what) {
  constexpr double kLeast = 10;
  std::map<Ids, std::pair<double, double>> both;
  for (const auto& [ids, n] : a) both[ids].first += n;
  for (const auto& [ids, n] : b) both[ids].second += n;
  double chi_square = 0, cells = 0, rare_a = 0, rare_b = 0;
  const auto add = [&](double x, double y) {
    chi_square += (x - y) * (x - y) / (x + y);
    ++cells;
  };
  for (const auto& [ids, n] : both) {
    if (n.first + n.second >= kLeast)
      add(n.first, n.second);
    else
      rare_a += n.first, rare_b += n.second;
  }
  if (rare_a + rare_b >= kLeast) add(rare_a, rare_b);
  ASSERT_GT(cells, 8) << what;
  EXPECT_LT(chi_square, chi_square_limit(cells - 1)) << what << ", " << cells << " texts";
}

TEST(DrawnDrafts, TextsHaveTheDistributionOfThoseWithoutDrafts) {
  constexpr int32_t kRuns = 6000;
  uint64_t seed = 1;
  for (const Asked& asked : all_asked()) {
    ToyModel plain_model;
    Engine plain(plain_model, {}, toy_options());
    const auto expected = texts_of(plain, asked, kRuns, seed);
    for (const VerificationRule rule : kRules) {
      ToyModel model;
      const auto head = std::make_shared<RoughHead>(Ids{3, 9, 22, 40, 50});  // 17 is missing
      Engine engine(model, {}, drawn(toy_options(), head, rule));
      const auto found = texts_of(engine, asked, kRuns, seed += 100'000);
      expect_alike(found, expected, std::string(asked.name) + ", " + name_of(rule));
      const SpeculationCounts& counts = engine.stats().speculation;
      EXPECT_GT(counts.num_accepted_tokens, kRuns / 10) << asked.name;
      EXPECT_GT(counts.num_draft_tokens - counts.num_accepted_tokens, kRuns / 10) << asked.name;
      EXPECT_EQ(engine.stats().kv_usage, 0);
    }
    seed += 100'000;
  }
}

// The block rule keeps more of the same drafts.
TEST(DrawnDrafts, TheBlockRuleKeepsMore) {
  int64_t kept[2];
  for (const VerificationRule rule : kRules) {
    ToyModel model;
    const auto head = std::make_shared<RoughHead>(Ids{3, 9, 22, 40, 50});
    Engine engine(model, {}, drawn(toy_options(), head, rule));
    texts_of(engine, all_asked()[0], 6000, 77);
    kept[rule == VerificationRule::kBlock] = engine.stats().speculation.num_accepted_tokens;
  }
  EXPECT_GT(kept[1], kept[0] + kept[0] / 50);
}

// Both are even over four ids: what is asked of a token leaves no others.
TEST(DrawnDrafts, OfAHeadEqualToTheModelAllAreKept) {
  Asked asked = of_few("even", {});
  asked.sampling.temperature = 1e7f;
  for (int32_t id = 0; id < ToyModel::kVocab; ++id)
    asked.sampling.logit_bias.push_back({id, id % 16 == 5 ? 0.f : -1e12f});
  for (const VerificationRule rule : kRules) {
    ToyModel model;
    const auto head = std::make_shared<RoughHead>(Ids{5, 21, 37, 53}, /*is_even=*/true);
    Engine engine(model, {}, drawn(toy_options(), head, rule));
    EXPECT_GT(texts_of(engine, asked, 500, 3).size(), 300u);
    const SpeculationCounts& counts = engine.stats().speculation;
    EXPECT_GT(counts.num_draft_tokens, 500);
    EXPECT_EQ(counts.num_accepted_tokens, counts.num_draft_tokens) << name_of(rule);
  }
}

// And the log-probabilities are the model's own, of the text that was said.
TEST(DrawnDrafts, LogProbabilitiesAreTheModelsOwn) {
  Asked asked = all_asked()[0];
  asked.sampling.logprobs = 3;
  for (const VerificationRule rule : kRules) {
    ToyModel model;
    const auto head = std::make_shared<RoughHead>(Ids{3, 9, 22, 40, 50});
    Engine engine(model, {}, drawn(toy_options(), head, rule));
    for (uint64_t seed = 0; seed < 20; ++seed) {
      Request request = request_for(asked, seed);
      request.max_tokens = 12;
      const Transcript said = run_all(engine, {request})[0];
      EXPECT_TRUE(run_all(engine, {request})[0] == said) << "the same seed, another text";
      Request scored = request;
      scored.prompt.insert(scored.prompt.end(), said.ids.begin(), said.ids.end());
      scored.max_tokens = 0, scored.prompt_logprobs = 3;
      const Transcript scores = run_alone(toy_options(), scored);
      for (size_t i = 0; i < said.outputs.size(); ++i) {
        const PromptLogprobs& at = scores.scores[request.prompt.size() - 1 + i];
        EXPECT_EQ(said.outputs[i].logprob, at.next_logprob) << seed << " " << i;
        EXPECT_TRUE(said.outputs[i].top == at.top) << seed << " " << i;
      }
    }
  }
}

TEST(DrawnDrafts, AtTemperatureZeroTheTextIsTheSame) {
  std::vector<Request> requests;
  std::vector<Transcript> expected;
  for (int32_t i = 0; i < 8; ++i) {
    Request r{.prompt = toy_prompt(2 + i * 9, i), .max_tokens = 30};
    r.sampling = {.temperature = 0, .logprobs = 2};
    requests.push_back(r);
    expected.push_back(run_alone(toy_options(), r));
  }
  for (const VerificationRule rule : kRules) {
    ToyModel model;
    Ids all(ToyModel::kVocab);
    for (int32_t i = 0; i < ToyModel::kVocab; ++i) all[i] = i;
    Engine engine(model, {}, drawn(toy_options(), std::make_shared<RoughHead>(all), rule));
    const std::vector<Transcript> found = run_all(engine, requests);
    for (size_t i = 0; i < requests.size(); ++i) EXPECT_TRUE(found[i] == expected[i]) << i;
    EXPECT_GT(engine.stats().speculation.num_draft_tokens, 0);
  }
}

// Rows that are no numbers end their requests, whatever verifies them.
TEST(DrawnDrafts, RowsThatAreNoNumbers) {
  for (const VerificationRule rule : kRules) {
    ToyModel model;
    model.nan_in_step = 2;
    const auto head = std::make_shared<RoughHead>(Ids{3, 9, 22, 40, 50});
    Engine engine(model, {}, drawn(toy_options(), head, rule));
    const Transcript end = run_all(engine, {request_for(all_asked()[0], 1)})[0];
    EXPECT_EQ(end.finish, FinishReason::kError);
    EXPECT_EQ(end.error, kNotNumbers);
  }
}

}  // namespace
}  // namespace nibble
