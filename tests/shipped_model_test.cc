// The models that ship against Hugging Face transformers (goldens written by
// tools/write_tiny_goldens.py), and proof that the comparison sees: of gpt-oss without sinks, with
// another window, with nibbles swapped or with YaRN's ramp rounded, it fails; of Qwen3-Next with
// nibbles swapped, without decay, with norms' weights as they stand or another RoPE.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "io/checkpoint.h"
#include "io/safetensors.h"
#include "models/test_runner.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kSource = NIBBLE_SOURCE_DIR;

struct Shipped {
  Shipped(const char* name, const char* golden)
      : directory(kSource / "models" / name),
        golden(json::parse(std::ifstream(kSource / "tests/goldens" / golden))) {}
  fs::path directory;
  json golden;
};

const Shipped& gpt_oss() {
  static const Shipped kModel("nibble-tiny-gpt-oss", "nibble_tiny.json");
  return kModel;
}

const Shipped& qwen3_next() {
  static const Shipped kModel("nibble-tiny-qwen3-next", "nibble_tiny_qwen3_next.json");
  return kModel;
}

// Log-probabilities in float32 against float32: the logits' error (models/gpt_oss_test.cc: 1e-4 of
// their root mean square, about 5 for this model) twice, for the logit and for the normaliser, and
// half a unit of the golden's fifth decimal.
constexpr double kFloatTolerance = 2 * 5e-4 + 5e-6;

struct Loaded {
  explicit Loaded(const fs::path& directory) {
    cx.pool = &pool;
    cx.kernels.allow_ref = cx.kernels.isa == cpu::Isa::kScalar;
    model = load_model(cx, directory, {});
    model->reserve(cx, {512, 512});
  }
  cpu::ThreadPool pool{2};
  ops::Ctx cx;
  std::unique_ptr<Model> model;
};

std::vector<double> log_softmax(const std::vector<float>& logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float x : logits) sum += std::exp(x - top);
  std::vector<double> out;
  for (float x : logits) out.push_back(x - top - std::log(sum));
  return out;
}

struct Score {
  double worst = 0;       // largest difference of a log-probability
  int64_t other_ids = 0;  // positions where another id is best, the golden's gap being clear
  int64_t positions = 0;
};

// The golden's answers, each id predicted from the golden's own ids before it. The best id must be
// the golden's unless the golden's two best logits are closer than what both may be off by.
Score score_answers(const fs::path& directory, const json& golden, DType kv, double tolerance) {
  Loaded loaded(directory);
  Score score;
  for (const json& answer : golden.at("answers")) {
    std::vector<int32_t> tokens = answer.at("prompt");
    const std::vector<int32_t> ids = answer.at("ids");
    const size_t prompt = tokens.size();
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    TestRunner runner(*loaded.model, loaded.cx, 1, static_cast<int32_t>(tokens.size()), kv);
    const auto logits = runner.run(tokens, 512);
    for (size_t i = 0; i < ids.size(); ++i) {
      const std::vector<double> logprobs = log_softmax(logits[prompt - 1 + i]);
      const double want = answer.at("logprobs")[i];
      score.worst = std::max(score.worst, std::fabs(logprobs[ids[i]] - want));
      const auto best = std::max_element(logprobs.begin(), logprobs.end()) - logprobs.begin();
      score.other_ids += best != ids[i] && answer.at("gaps")[i] > 2 * tolerance;
      ++score.positions;
    }
  }
  return score;
}

// The golden's long prompt, its first `length` ids.
double worst_of_long_prompt(const fs::path& directory, const json& golden, size_t length) {
  Loaded loaded(directory);
  std::vector<int32_t> ids = golden.at("long").at("ids");
  ids.resize(std::min(ids.size(), length));
  TestRunner runner(*loaded.model, loaded.cx, 1, static_cast<int32_t>(ids.size()), DType::kF32);
  const auto logits = runner.run(ids, 512);
  double worst = 0;
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    const double want = golden.at("long").at("next_logprobs")[i];
    worst = std::max(worst, std::fabs(log_softmax(logits[i])[ids[i + 1]] - want));
  }
  return worst;
}

class ShippedModel : public ::testing::TestWithParam<const Shipped& (*)()> {
 protected:
  const Shipped& model = GetParam()();
};

TEST_P(ShippedModel, GreedyAnswersEqualTransformers) {
  const Score score = score_answers(model.directory, model.golden, DType::kF32, kFloatTolerance);
  EXPECT_GT(score.positions, 500);
  EXPECT_EQ(score.other_ids, 0);
  EXPECT_LT(score.worst, kFloatTolerance);
}

// As it is served: keys and values in bf16, rounded by 2^-9 / sqrt(3) of themselves, root mean
// square. Twelve such roundings, as a random walk: 0.4% of logits of size 5; four deviations: 0.08.
TEST_P(ShippedModel, GreedyAnswersEqualTransformersWithBf16Pages) {
  const Score score = score_answers(model.directory, model.golden, DType::kBF16, 0.1);
  EXPECT_EQ(score.other_ids, 0);
  EXPECT_LT(score.worst, 0.1);
}

TEST_P(ShippedModel, LongPromptEqualsTransformers) {
  EXPECT_LT(worst_of_long_prompt(model.directory, model.golden, 6000), kFloatTolerance);
}

INSTANTIATE_TEST_SUITE_P(All, ShippedModel, ::testing::Values(gpt_oss, qwen3_next),
                         [](const auto& info) {
                           return std::string(info.index == 0 ? "gpt_oss" : "qwen3_next");
                         });

// ---- The same with something wrong
// ---------------------------------------------------------------

struct Wrong {
  const char* name;
  std::function<void(json& config)> config;
  std::function<void(const std::string& tensor, std::vector<std::byte>& data)> tensor;
};

// A copy of the model with one thing changed, deleted at the end.
class Altered {
 public:
  Altered(const fs::path& model, const Wrong& wrong)
      : directory_(fs::path(testing::TempDir()) /
                   ("nibble_" + std::to_string(getpid()) + "_" + wrong.name)) {
    fs::create_directories(directory_);
    json config = json::parse(std::ifstream(model / "config.json"));
    if (wrong.config) wrong.config(config);
    std::ofstream(directory_ / "config.json") << config;
    const auto checkpoint = open_checkpoint(model);
    std::vector<std::vector<std::byte>> data;
    std::vector<TensorData> tensors;
    for (const TensorInfo& info : checkpoint->tensors()) {
      data.emplace_back(info.bytes);
      const ReadJob job = ReadJob::whole(info, data.back().data());
      checkpoint->read({&job, 1});
      if (wrong.tensor) wrong.tensor(info.name, data.back());
      tensors.push_back({info.name, info.dtype, info.shape, data.back()});
    }
    write_safetensors(directory_ / "model.safetensors", tensors);
  }
  ~Altered() { fs::remove_all(directory_); }
  const fs::path& directory() const { return directory_; }

 private:
  fs::path directory_;
};

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

const Wrong kNoSinks{"no_sinks", {}, [](const std::string& name, std::vector<std::byte>& data) {
                       // bf16 -1e30: exp() of it is nothing.
                       if (ends_with(name, "sinks"))
                         for (size_t i = 0; i < data.size(); i += 2)
                           data[i] = std::byte{0x4a}, data[i + 1] = std::byte{0xf1};
                     }};
const auto kSwap = [](const std::string&, std::vector<std::byte>& data) {
  for (std::byte& b : data) b = b << 4 | b >> 4;
};
const Wrong kSwappedNibbles{
    "swapped_nibbles", {}, [](const std::string& name, std::vector<std::byte>& data) {
      if (ends_with(name, "_blocks")) kSwap(name, data);
    }};
const Wrong kWiderWindow{"wider_window", [](json& config) { config["sliding_window"] = 64; }, {}};
const Wrong kNarrowerWindow{
    "narrower_window", [](json& config) { config["sliding_window"] = 31; }, {}};
const Wrong kTruncatedRamp{
    "truncated_ramp", [](json& config) { config["rope_scaling"]["truncate"] = true; }, {}};

const Wrong kSwappedNvfp4{
    "swapped_nvfp4", {}, [](const std::string& name, std::vector<std::byte>& data) {
      if (ends_with(name, "down_proj.weight") && !name.starts_with("mtp.")) kSwap(name, data);
    }};
const Wrong kNoDecay{"no_decay", {}, [](const std::string& name, std::vector<std::byte>& data) {
                       if (ends_with(name, "A_log"))  // bf16 -100
                         for (size_t i = 0; i < data.size(); i += 2)
                           data[i] = std::byte{0xc8}, data[i + 1] = std::byte{0xc2};
                     }};
const Wrong kOtherNorm{"other_norm", [](json& config) { config["rms_norm_eps"] = 0.01; }, {}};
const Wrong kOtherTheta{"other_theta", [](json& config) { config["rope_theta"] = 10000; }, {}};

struct Case {
  const Shipped& model;
  std::vector<Wrong> seen;            // in log-probabilities
  std::vector<Wrong> change_answers;  // in what is said, too
};

std::vector<Case> cases() {
  return {{gpt_oss(),
           {kNoSinks, kSwappedNibbles, kWiderWindow, kNarrowerWindow, kTruncatedRamp},
           {kNoSinks, kSwappedNibbles, kWiderWindow}},
          {qwen3_next(),
           {kSwappedNvfp4, kNoDecay, kOtherNorm, kOtherTheta},
           {kSwappedNvfp4, kNoDecay}}};
}

TEST(WrongReadings, UnchangedCopyStillAgrees) {
  for (const Case& c : cases()) {
    const Altered copy(c.model.directory, {"unchanged", {}, {}});
    EXPECT_LT(worst_of_long_prompt(copy.directory(), c.model.golden, 1000), kFloatTolerance);
  }
}

TEST(WrongReadings, EveryOneIsSeen) {
  for (const Case& c : cases())
    for (const Wrong& wrong : c.seen) {
      const Altered copy(c.model.directory, wrong);
      EXPECT_GT(worst_of_long_prompt(copy.directory(), c.model.golden, 1000), 10 * kFloatTolerance)
          << wrong.name;
    }
}

TEST(WrongReadings, AnswersVisiblyBreak) {
  for (const Case& c : cases())
    for (const Wrong& wrong : c.change_answers) {
      const Altered copy(c.model.directory, wrong);
      const Score score =
          score_answers(copy.directory(), c.model.golden, DType::kF32, kFloatTolerance);
      EXPECT_GT(score.other_ids, score.positions / 50) << wrong.name;
    }
}

}  // namespace
}  // namespace nibble
