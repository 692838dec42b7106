// Eagle3 heads against an independent forward pass in float64 (tests/goldens/eagle3, written by
// tools/write_eagle3_goldens.py), behind targets that this program runs; what is refused of them.
#include "models/eagle3.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "base/error.h"
#include "models/test_goldens.h"

namespace nibble {
namespace {

using testing::HasSubstr;

const std::filesystem::path kGoldens = std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/goldens";
constexpr std::pair<const char*, const char*> kCases[] = {{"specforge", "llama"},
                                                          {"specdrift", "llama"},
                                                          {"modelopt", "qwen3"},
                                                          {"speculators", "qwen3"}};

class Eagle3Golden : public testing::TestWithParam<std::pair<const char*, const char*>> {
 protected:
  Eagle3Golden() : directory(kGoldens / "eagle3" / GetParam().first) {
    for (const int64_t token : expected<int64_t>(family(), "tokens"))
      tokens.push_back(static_cast<int32_t>(token));
    cx.pool = &pool;
  }
  std::filesystem::path family() const { return kGoldens / "families" / GetParam().second; }

  void load(bool by_twins, const DenseFormats& dense = {}) {
    cx.kernels = {};
    if (by_twins) run_twins(cx.kernels);
    target = load_model(cx, family(), {});
    head = load_draft_head(cx, {directory}, *target, {.dense = dense});
    target->keep_rows(head->target_layers());
    target->reserve(cx, {128, 128});
    head->model().reserve(cx, {128, 128});
  }

  // Logits of the head for positions 0.. in chunks of `chunk`, then of a chain of drafts.
  void draft(int32_t chunk) {
    const auto length = static_cast<int32_t>(tokens.size());
    TestRunner target_runner(*target, cx, 1, length, DType::kF32);
    TestRunner runner(head->model(), cx, 1, length + 8, DType::kF32);
    std::vector<int32_t> rows(length);
    for (int32_t i = 0; i < length; ++i) rows[i] = i;
    const std::vector<Tensor> kept = target->kept_rows();
    for (int32_t begin = 0; begin < length; begin += chunk) {
      const int32_t end = std::min(length, begin + chunk);
      target_runner.step({{0, {tokens.begin() + begin, tokens.begin() + end}}});
      const int32_t behind = std::min(length, end + 1);  // nothing follows the last token yet
      if (begin + 1 == behind) break;
      head->set_input({kept, rows.data()});
      for (auto& row : runner.step({{0, {tokens.begin() + begin + 1, tokens.begin() + behind}}}))
        logits.push_back(std::move(row));
    }
    drafts.push_back(logits.back());
    // The row of the step before that the next one goes on from: its last.
    int32_t last = (length - 1) % chunk == 0 ? chunk - 1 : (length - 1) % chunk - 1;
    for (size_t i = 1; i < expected<int64_t>(directory, "draft_ids").size(); ++i) {
      head->set_input({{}, &last});
      drafts.push_back(runner.step({{0, {likeliest(drafts.back())}}}).at(0));
      last = 0;
    }
  }
  int32_t likeliest(const std::vector<float>& row) const {
    return head->target_ids().at(std::max_element(row.begin(), row.end()) - row.begin());
  }
  // The most that logits, of deviation 2 and more, differ by.
  static double off(const std::vector<std::vector<float>>& got, const std::vector<float>& want) {
    double most = 0;
    for (size_t r = 0; r < got.size(); ++r)
      for (size_t i = 0; i < got[r].size(); ++i)
        most = std::max(most, std::fabs(double{got[r][i]} - want.at(r * got[r].size() + i)));
    return most;
  }

  std::filesystem::path directory;
  std::vector<int32_t> tokens;
  cpu::ThreadPool pool{2};
  ops::Ctx cx;
  std::unique_ptr<Model> target;
  std::unique_ptr<DraftHead> head;
  std::vector<std::vector<float>> logits, drafts;
};

// Rows of some hundred terms of order one in float32, a layer of them behind the target's own
// three: 2^-24 * sqrt(300) * 2 a product is 2e-6, of which a dozen follow one another.
constexpr double kBound = 5e-5;

TEST_P(Eagle3Golden, DraftsEqualAnIndependentForwardPass) {
  for (const bool by_twins : {true, false})
    for (const int32_t chunk : {128, 7, 1}) {
      logits.clear(), drafts.clear();
      load(by_twins);
      draft(chunk);
      ASSERT_EQ(logits.size(), tokens.size() - 1);
      EXPECT_LT(off(logits, expected<float>(directory, "logits")), kBound) << chunk << by_twins;
      EXPECT_LT(off(drafts, expected<float>(directory, "draft_logits")), kBound) << chunk;
      std::vector<int64_t> ids;
      for (const auto& row : drafts) ids.push_back(likeliest(row));
      EXPECT_EQ(ids, expected<int64_t>(directory, "draft_ids"));
    }
}

// "quantization": of logits as much is lost as blocks of 8 or 4 bits lose of weights, a few per
// cent and some ten. Of matrices whose columns are whole blocks.
TEST_P(Eagle3Golden, IsEncodedOnLoad) {
  load(false);
  const int64_t bytes = head->model().info().weight_bytes;
  const std::vector<float> want = expected<float>(directory, "logits");
  const std::pair<Format, double> kMost[] = {
      {Format::kMxfp8, 0.1}, {Format::kMxfp4, 0.5}, {Format::kNvfp4, 0.5}};
  for (const auto& [format, most] : kMost) {
    logits.clear(), drafts.clear();
    const bool has_blocks = std::string(GetParam().first) != "speculators";
    load(false, {.qkv = format, .unembed = has_blocks ? format : Format::kBF16});
    EXPECT_LT(head->model().info().weight_bytes, bytes);
    draft(128);
    double errors = 0, sum = 0;
    for (size_t r = 0; r < logits.size(); ++r)
      for (size_t i = 0; i < logits[r].size(); ++i) {
        const double expected = want.at(r * logits[r].size() + i);
        errors += std::pow(logits[r][i] - expected, 2), sum += expected * expected;
      }
    EXPECT_LT(std::sqrt(errors / sum), most) << format_name(format);
    EXPECT_GT(std::sqrt(errors / sum), most / 50) << format_name(format);
  }
}

TEST_P(Eagle3Golden, ReadsTheLayersThatItsDialectNames) {
  load(false);
  std::vector<int64_t> layers(head->target_layers().begin(), head->target_layers().end());
  EXPECT_EQ(layers, expected<int64_t>(directory, "layers"));
  const DraftHeadInfo info = describe_draft_head({directory}, family());
  EXPECT_EQ(info.target_layers, head->target_layers());
  EXPECT_EQ(info.model.weight_bytes, head->model().info().weight_bytes);
}

INSTANTIATE_TEST_SUITE_P(Dialects, Eagle3Golden, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.first); });

// The rows kept are those that the tap sees, and a model that keeps them says the same.
TEST(KeptRows, AreTheResidualStreamThatEntersALayer) {
  for (const char* name : {"llama", "qwen3", "qwen3_moe"}) {
    cpu::ThreadPool pool{2};
    ops::Ctx cx;
    cx.pool = &pool;
    const std::vector<int32_t> tokens = {5, 9, 2, 77, 31, 8};
    const std::filesystem::path path = kGoldens / "families" / name;
    const auto plain = load_model(cx, path, {}), keeps = load_model(cx, path, {});
    keeps->keep_rows({0, 1});
    for (Model* m : {plain.get(), keeps.get()}) m->reserve(cx, {16, 16});
    const StepLimits limits{16, 16};
    EXPECT_GE(keeps->scratch_bytes(cx, limits) - plain->scratch_bytes(cx, limits),
              int64_t{2} * 16 * keeps->embedding()->cols * 4);
    std::vector<std::vector<float>> seen(2);
    TestRunner a(*plain, cx, 1, 16, DType::kF32);
    cx.tap = [&](std::string_view buffer, int layer, const Tensor& t) {
      if (buffer == "x" && layer < 2)
        seen[layer].assign(t.as<float>(), t.as<float>() + t.num_elements());
    };
    const auto want = a.run(tokens, 16);
    cx.tap = {};
    TestRunner b(*keeps, cx, 1, 16, DType::kF32);
    EXPECT_EQ(b.run(tokens, 16), want);
    const std::vector<Tensor> kept = keeps->kept_rows();
    ASSERT_EQ(kept.size(), 2u);
    for (size_t l = 0; l < 2; ++l)
      EXPECT_EQ(std::vector<float>(kept[l].as<float>(), kept[l].as<float>() + seen[l].size()),
                seen[l])
          << name;
  }
}

// ---- what is refused ----

std::string config_of(const std::string& name) {
  std::ifstream file(kGoldens / "eagle3" / name / "config.json");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string fault(std::string config, const std::string& from, const std::string& to,
                  int32_t layers = 3) {
  const size_t at = config.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  config.replace(at, from.size(), to);
  try {
    parse_eagle3_config(Config::parse(config, "head/config.json"), layers);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Eagle3Config, SaysWhatDoesNotFit) {
  const std::string forge = config_of("specforge"), red_hat = config_of("speculators");
  EXPECT_THAT(fault(forge, "\"silu\"", "\"gelu\""), HasSubstr("hidden_act: is gelu"));
  EXPECT_THAT(fault(forge, "\"num_hidden_layers\": 1", "\"num_hidden_layers\": 2"),
              HasSubstr("heads of one layer"));
  EXPECT_THAT(fault(forge, "\"head_dim\": 22", "\"head_dim\": 21"), HasSubstr("head_dim: is odd"));
  EXPECT_THAT(fault(forge, "\"eagle_aux_hidden_state_layer_ids\": [\n   0,",
                    "\"eagle_aux_hidden_state_layer_ids\": [\n   2,"),
              HasSubstr("must rise"));
  EXPECT_THAT(fault(forge, "{", "{", 2), HasSubstr("which has 2; was the head made for another?"));
  EXPECT_THAT(fault(forge, "\"draft_vocab_size\": 37", "\"draft_vocab_size\": 102"),
              HasSubstr("draft_vocab_size"));
  EXPECT_THAT(fault(red_hat, "\"eagle3\"", "\"eagle\""), HasSubstr("expected eagle3"));
  EXPECT_THAT(fault(red_hat, "transformer_layer_config", "layer_config"),
              HasSubstr("transformer_layer_config: is missing"));
  EXPECT_THAT(fault(config_of("modelopt"), "\"use_aux_hidden_state\": true",
                    "\"use_aux_hidden_state\": false"),
              HasSubstr("use_aux_hidden_state: is false"));
  const auto with = [&](const std::string& more) {
    return fault(config_of("modelopt"), "\"use_aux_hidden_state\": true",
                 "\"use_aux_hidden_state\": true, " + more);
  };
  EXPECT_EQ(with("\"parallel_draft_step\": null, \"use_mtp_layernorm\": false"), "");
  EXPECT_THAT(with("\"parallel_draft_step\": 4"), HasSubstr("parallel_draft_step: is not 1"));
  EXPECT_THAT(with("\"use_mtp_layernorm\": true"), HasSubstr("use_mtp_layernorm: is true"));
}

TEST(Eagle3Config, WithoutIdsAllDialectsMeanTheSameThree) {
  for (const char* name : {"specforge", "speculators"}) {
    std::string text = config_of(name);
    const size_t at = text.find("eagle_aux_hidden_state_layer_ids");
    text.replace(at, 5, "other");
    text.insert(text.find('{') + 1, R"("eagle_aux_hidden_state_layer_ids": [],)");
    EXPECT_EQ(parse_eagle3_config(Config::parse(text, "c"), 36).target_layers,
              (std::vector<int32_t>{2, 18, 33}))
        << name;
  }
}

TEST(Eagle3Head, ForAnotherModelIsRefused) {
  const auto fault_of = [](const char* head, const char* target) -> std::string {
    try {
      describe_draft_head({kGoldens / "eagle3" / head}, kGoldens / "families" / target);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(
      fault_of("specforge", "qwen3"),
      HasSubstr("made for a model with a hidden size of 96; this one, Qwen3ForCausalLM, has "
                "64"));
  EXPECT_THAT(fault_of("modelopt", "qwen3_next"),
              HasSubstr("no Eagle3 head drafts for Qwen3NextForCausalLM yet"));
  EXPECT_EQ(fault_of("specforge", "llama"), "");

  const auto other = std::filesystem::path(testing::TempDir()) / "head_of_another_vocabulary";
  std::filesystem::create_directories(other);
  std::string text = config_of("specforge");
  text.replace(text.find("\"vocab_size\": 101"), 17, "\"vocab_size\": 102");
  std::ofstream(other / "config.json") << text;
  EXPECT_THAT(fault_of(other.c_str(), "llama"),
              HasSubstr("made for a model with a vocabulary of 102; this one, LlamaForCausalLM, "
                        "has 101"));
}

}  // namespace
}  // namespace nibble
