// MTP layers against an independent forward pass (tests/goldens/mtp, written by
// tools/write_mtp_goldens.py), behind targets that this program runs; what is refused of them.
#include "models/mtp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "io/checkpoint.h"
#include "io/io_test.h"
#include "models/test_goldens.h"
#include "ops/site.h"

namespace nibble {
namespace {

using testing::HasSubstr;

const std::filesystem::path kAllGoldens = kGoldens.parent_path();
// The layer's directory, and its target's.
constexpr std::pair<const char*, const char*> kCases[] = {
    {"qwen3_next", "qwen3_next"},     {"qwen3_next-modelopt", "qwen3_next"},
    {"qwen3_next-fp8", "qwen3_next"}, {"qwen3_next-128", "qwen3_next-128"},
    {"qwen3_5_moe", "qwen3_5_moe"},   {"qwen3_5", "qwen3_5"}};

class MtpGolden : public testing::TestWithParam<std::pair<const char*, const char*>> {
 protected:
  MtpGolden()
      : directory(kAllGoldens / "mtp" / GetParam().first), family(kGoldens / GetParam().second) {
    for (const int64_t token : expected<int64_t>(family, "tokens"))
      tokens.push_back(static_cast<int32_t>(token));
    cx.pool = &pool;
  }

  void load(bool by_twins, const DraftHeadSource& source) {
    cx.kernels = {};
    if (by_twins) run_twins(cx.kernels);
    target = load_model(cx, family, {});
    head = load_draft_head(cx, source, *target, {});
    target->keep_rows(head->target_layers());
    target->reserve(cx, {160, 160});
    head->model().reserve(cx, {160, 160});
  }

  // Logits of positions 0.. in chunks of `chunk`, then of a chain of drafts.
  void draft(int32_t chunk) {
    const auto length = static_cast<int32_t>(tokens.size());
    TestRunner target_runner(*target, cx, 1, length, DType::kF32);
    TestRunner runner(head->model(), cx, 1, length + 8, DType::kF32);
    std::vector<int32_t> rows(length);
    for (int32_t i = 0; i < length; ++i) rows[i] = i;
    const std::vector<Tensor> kept = target->kept_rows();
    ASSERT_EQ(kept.size(), 1u);
    int32_t last = 0;
    for (int32_t begin = 0; begin + 1 < length; begin += chunk) {
      const int32_t end = std::min(length, begin + chunk);
      target_runner.step({{0, {tokens.begin() + begin, tokens.begin() + end}}});
      const int32_t behind = std::min(length, end + 1);  // nothing follows the last token yet
      head->set_input({kept, rows.data()});
      for (auto& row : runner.step({{0, {tokens.begin() + begin + 1, tokens.begin() + behind}}}))
        logits.push_back(std::move(row));
      last = behind - begin - 2;
    }
    drafts.push_back(logits.back());
    for (size_t i = 1; i < expected<int64_t>(directory, "draft_ids").size(); ++i) {
      head->set_input({{}, &last});  // the row of the step before that the next one goes on from
      drafts.push_back(runner.step({{0, {likeliest(drafts.back())}}}).at(0));
      last = 0;
    }
  }
  int32_t likeliest(const std::vector<float>& row) const {
    return head->target_ids().at(std::max_element(row.begin(), row.end()) - row.begin());
  }

  std::filesystem::path directory, family;
  std::vector<int32_t> tokens;
  cpu::ThreadPool pool{2};
  ops::Ctx cx;
  std::unique_ptr<Model> target;
  std::unique_ptr<DraftHead> head;
  Logits logits, drafts;
};

// own_error: what the oracle's rows are off by in float32, by how the target sums. Five times that,
// as for the target itself.
TEST_P(MtpGolden, DraftsEqualAnIndependentForwardPass) {
  const double bound = 5 * expected<float>(directory, "own_error").at(0);
  EXPECT_LT(bound, 5e-4);
  for (const bool by_twins : {true, false})
    for (const int32_t chunk : {160, 64, 7}) {
      if (by_twins && chunk == 7) continue;
      logits.clear(), drafts.clear();
      load(by_twins, {directory});
      draft(chunk);
      ASSERT_EQ(logits.size(), tokens.size() - 1);
      EXPECT_LT(worst(logits, expected<float>(directory, "logits")), bound) << chunk << by_twins;
      EXPECT_LT(worst(drafts, expected<float>(directory, "draft_logits")), bound) << chunk;
      std::vector<int64_t> ids;
      for (const auto& row : drafts) ids.push_back(likeliest(row));
      EXPECT_EQ(ids, expected<int64_t>(directory, "draft_ids"));
    }
}

TEST_P(MtpGolden, IsDescribedAsItIsLoaded) {
  load(false, {directory});
  const DraftHeadInfo said = describe_draft_head({directory}, family);
  EXPECT_EQ(said.target_layers, std::vector<int32_t>{target->info().num_layers});
  const ModelInfo& info = head->model().info();
  EXPECT_EQ(said.model.weight_bytes, info.weight_bytes);
  EXPECT_EQ(said.model.weight_bytes_per_token, info.weight_bytes_per_token);
  // The head's matrix is read, and lies in memory but once.
  const int64_t head_bytes = int64_t{2} * info.vocab_size * target->embedding()->cols;
  EXPECT_GT(info.weight_bytes_per_token, head_bytes);
  int64_t read = 0;
  for (const WeightPart& part : info.parts) read += part.bytes / part.choices * part.chosen;
  EXPECT_EQ(info.weight_bytes_per_token, read + head_bytes);
}

// ---- checkpoints ----

// The tensors of the target and of the layer in one directory, less some.
class Together {
 public:
  explicit Together(const std::string& name, const std::string& without = "-")
      : Together(name, name, without) {}
  Together(const std::string& family, const std::string& mtp, const std::string& without)
      : path(std::filesystem::path(testing::TempDir()) /
             testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(path);
    std::filesystem::create_directories(path);
    nlohmann::json index;
    for (const auto& [part, name] : {std::pair<std::string, std::string>("families", family),
                                     std::pair<std::string, std::string>("mtp", mtp)}) {
      const std::filesystem::path from = kAllGoldens / part / name;
      const std::string shard = part + ".safetensors";
      std::filesystem::copy(from / "model.safetensors", path / shard);
      std::filesystem::copy(from / "config.json", path / "config.json",
                            std::filesystem::copy_options::overwrite_existing);
      const auto checkpoint = open_checkpoint(from);
      for (const TensorInfo& t : checkpoint->tensors())
        if (t.name != without) index["weight_map"][t.name] = shard;
    }
    std::ofstream(path / "model.safetensors.index.json") << index.dump();
  }
  const std::filesystem::path path;
};

// Of the head that it shares with its target an MTP layer may have some rows, in any order.
using MtpOfSomeIds = MtpGolden;

TEST_P(MtpOfSomeIds, HasTheirLogits) {
  const Together all(GetParam().second, GetParam().first, "-");
  load(false, {all.path});
  draft(64);
  const Logits full = logits;
  const ModelInfo whole = head->model().info();
  const int64_t hidden = target->embedding()->cols;
  std::vector<int32_t> backward;
  for (int32_t id = whole.vocab_size; id > 0; --id) backward.push_back(id - 1);
  for (const std::vector<int32_t>& ids : {std::vector<int32_t>{17},
                                          backward,
                                          {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                          {63, 3, 4, 5, 61, 60, 0}}) {
    logits.clear(), drafts.clear();
    load(false, {all.path, ids});
    EXPECT_EQ(head->target_ids(), ids);
    draft(64);
    ASSERT_EQ(logits.size(), full.size());
    for (size_t t = 0; t < full.size(); ++t)
      for (size_t i = 0; i < ids.size(); ++i)
        EXPECT_EQ(logits[t].at(i), full[t].at(ids[i])) << t << " " << ids[i];
    // What it has of the matrix is its own, and is read instead of the target's.
    const ModelInfo info = describe_draft_head({all.path, ids}, family).model;
    const int64_t num = std::ssize(ids);
    EXPECT_EQ(info.vocab_size, num);
    EXPECT_EQ(info.weight_bytes, head->model().info().weight_bytes);
    EXPECT_EQ(info.weight_bytes, whole.weight_bytes + 2 * num * hidden);
    EXPECT_EQ(info.weight_bytes_per_token,
              whole.weight_bytes_per_token - 2 * (whole.vocab_size - num) * hidden);
  }
}

// A shared expert of the others' width is one more of them; drafts are those of one that is wider
// by zeros, which lies apart.
using MtpOfExperts = MtpGolden;
TEST_P(MtpOfExperts, TakesTheSharedOneForOneMore) {
  constexpr int64_t kWidth = 32;
  std::vector<float> want;
  for (const bool is_one_more : {false, true}) {
    const test::TempDir dir;
    write_changed("../mtp/qwen3_next", dir.path(),
                  [&](TensorInfo& t, std::vector<std::byte>& bytes) {
                    if (t.name.find("shared_expert.") == std::string::npos) return;
                    const bool is_down = t.name.find("down_proj") != std::string::npos;
                    const int64_t rows = t.shape[0], cols = t.shape[1];
                    std::vector<std::byte> changed;
                    for (int64_t i = 0; i < rows * cols; ++i) {
                      const bool is_kept = (is_down ? i % cols : i / cols) < kWidth;
                      if (!is_kept && is_one_more) continue;
                      for (const std::byte byte : {bytes[2 * i], bytes[2 * i + 1]})
                        changed.push_back(is_kept ? byte : std::byte{0});
                    }
                    bytes = std::move(changed);
                    if (is_one_more) t.shape = {is_down ? rows : kWidth, is_down ? kWidth : cols};
                  });
    if (is_one_more) {
      std::ifstream file(dir.path() / "config.json");
      nlohmann::json json = nlohmann::json::parse(file);
      json["shared_expert_intermediate_size"] = kWidth;
      std::ofstream(dir.path() / "config.json") << json.dump();
    }
    for (const bool by_twins : {true, false}) {
      logits.clear(), drafts.clear();
      load(by_twins, {dir.path()});
      for (const ops::Site& site : dynamic_cast<SiteModel&>(head->model()).sites()) {
        const auto* down = std::get_if<ops::MoeDownDesc>(&site.problem);
        EXPECT_EQ(down == nullptr ? is_one_more : down->shared, is_one_more);
      }
      draft(64);
      std::vector<float> all;
      for (const auto& row : logits) all.insert(all.end(), row.begin(), row.end());
      if (want.empty()) want = all;
      EXPECT_LT(worst(logits, want), 1e-4) << is_one_more << by_twins;
    }
  }
}

constexpr auto kName = [](const auto& info) {
  std::string name = info.param.first;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
};
INSTANTIATE_TEST_SUITE_P(Cases, MtpGolden, testing::ValuesIn(kCases), kName);
INSTANTIATE_TEST_SUITE_P(Cases, MtpOfExperts, testing::Values(kCases[0]), kName);
// In one directory: not of experts that lie in one tensor, which Together cannot index.
INSTANTIATE_TEST_SUITE_P(Cases, MtpOfSomeIds,
                         testing::Values(kCases[0], kCases[1], kCases[2], kCases[3], kCases[5]),
                         kName);

// As they are published: the target does not see the layer, nor the layer the target.
TEST(MtpCheckpoint, LiesBesideItsTarget) {
  const Together all("qwen3_next");
  cpu::ThreadPool pool{2};
  ops::Ctx cx;
  cx.pool = &pool;
  testing::internal::CaptureStderr();
  const auto target = load_model(cx, all.path, {});
  const auto head = load_draft_head(cx, {all.path}, *target, {});
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::Not(HasSubstr("not loaded")));
  EXPECT_EQ(target->info().weight_bytes, describe_model(kGoldens / "qwen3_next").weight_bytes);
  EXPECT_EQ(head->model().info().weight_bytes,
            describe_draft_head({kAllGoldens / "mtp/qwen3_next"}, all.path).model.weight_bytes);
}

std::string fault_of(const std::filesystem::path& head, const std::filesystem::path& target,
                     const std::vector<int32_t>& ids = {}, const Shard& shard = {}) {
  try {
    describe_draft_head({head, ids}, target, {}, shard);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(MtpCheckpoint, HalfThereIsRefusedByName) {
  for (const char* name :
       {"mtp.fc.weight", "mtp.norm.weight", "mtp.layers.0.mlp.experts.3.up_proj.weight"}) {
    const Together all("qwen3_next", name);
    EXPECT_THAT(fault_of(all.path, all.path),
                testing::AllOf(HasSubstr("weights mtp.*, but not "), testing::EndsWith(name)));
    EXPECT_EQ(describe_model(all.path).num_layers, 5);  // who does not ask for it is served
  }
}

TEST(MtpCheckpoint, NotThereIsSaidWhereItIsAskedFor) {
  const auto family = kGoldens / "qwen3_next";
  EXPECT_THAT(fault_of(family, family), HasSubstr("has no tensors mtp.*; \"model\" may name"));
}

TEST(MtpCheckpoint, ForAnotherModelIsRefused) {
  const auto fault = [](const char* head, const char* target) {
    return fault_of(kAllGoldens / "mtp" / head, kGoldens / target);
  };
  EXPECT_EQ(fault("qwen3_next", "qwen3_next"), "");
  EXPECT_THAT(fault("qwen3_next-128", "qwen3_next"),
              HasSubstr("made for a model with a hidden size of 128; this one, "
                        "Qwen3NextForCausalLM, has 64"));
  EXPECT_THAT(fault("qwen3_next", "qwen3_next-spelling"),
              HasSubstr("a number of layers of 5; this one, Qwen3NextForCausalLM, has 3"));
  EXPECT_THAT(fault("qwen3_next", "qwen3"), HasSubstr("a vocabulary of 96"));
}

TEST(MtpCheckpoint, IdsThatCannotBeAreRefused) {
  const Together all("qwen3_next");
  EXPECT_EQ(fault_of(all.path, all.path, {0, 95}), "");
  EXPECT_THAT(fault_of(all.path, all.path, {0, 96}),
              HasSubstr("id 96 of draft_vocab_size or draft_vocab_file is not in the model's "
                        "vocabulary of 96"));
  const auto apart = kAllGoldens / "mtp/qwen3_next";  // without the target's matrices
  const char* const kNoHead =
      "has no lm_head.weight beside its tensors mtp.*; an MTP layer of several ranks";
  EXPECT_THAT(fault_of(apart, all.path, {1}), HasSubstr(kNoHead));
  EXPECT_EQ(fault_of(apart, all.path), "");
  EXPECT_THAT(fault_of(apart, all.path, {}, {0, 2}), HasSubstr(kNoHead));
}

// Its experts and the rows of the head that are its own, too.
TEST(MtpCheckpoint, BecomesWhatQuantizationSays) {
  const Together all("qwen3_next");
  cpu::ThreadPool pool(1);
  ops::Ctx cx;
  cx.pool = &pool;
  const auto target = load_model(cx, all.path, {});
  constexpr Format kTo = Format::kNvfp4;
  const auto head =
      load_draft_head(cx, {all.path, {0, 3, 95}}, *target, {.dense = {kTo, kTo, kTo, kTo}});
  int matrices = 0;
  for (const ops::Site& site : dynamic_cast<SiteModel&>(head->model()).sites()) {
    if (site.weight.codes == nullptr || site.key.op == ops::Op::kEmbed) continue;
    const Format want = site.key.op == ops::Op::kNormRoute ? Format::kBF16 : kTo;
    EXPECT_EQ(site.weight.format, want) << site.label;
    ++matrices;
  }
  EXPECT_EQ(matrices, 9);  // fc, qkv, out, router, shared twice, experts twice, head
}

TEST(MtpConfig, SaysWhatDoesNotFit) {
  const auto fault = [](const std::string& key, int value) -> std::string {
    std::ifstream file(kAllGoldens / "mtp/qwen3_5/config.json");
    nlohmann::json json = nlohmann::json::parse(file);
    json["text_config"][key] = value;
    try {
      parse_mtp_config(Config::parse(json.dump(), "config.json"));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(fault("mtp_num_hidden_layers", 1), "");
  EXPECT_THAT(fault("mtp_num_hidden_layers", 0), HasSubstr("the model has no MTP layer"));
  EXPECT_THAT(fault("num_nextn_predict_layers", 2), HasSubstr("by one MTP layer"));
  EXPECT_FALSE(may_have_mtp(Config::parse("{\"architectures\":[\"LlamaForCausalLM\"]}", "c")));
}

}  // namespace
}  // namespace nibble
