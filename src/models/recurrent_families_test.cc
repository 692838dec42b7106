// Models some of whose layers are recurrent, against Hugging Face transformers' own states and at
// positions past 64k (tests/goldens/families, written by tools/write_hybrid_goldens.py); the forms
// in which they are published, and weights that cannot be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "base/error.h"
#include "io/io_test.h"
#include "models/random_checkpoint.h"
#include "models/step_work.h"
#include "models/test_goldens.h"
#include "ops/site.h"

namespace nibble {
namespace {

using testing::HasSubstr;

constexpr int32_t kAt = 80, kPeriod = 64, kFar = 70'000;
class FarGolden : public testing::TestWithParam<const char*> {};

// The tokens behind the first kAt stand at 70,000 and on, by what angles of 24 bits are there, and
// meet keys that were turned by small angles: partial rotary embeddings, plain and YaRN's.
TEST_P(FarGolden, PositionsPast64kEqualTransformers) {
  const std::string name = GetParam();
  const std::vector<int32_t> tokens = tokens_of(name);
  const std::vector<float> want = expected<float>(name, "far_logits");
  const double bound = 5 * expected<float>(name, "far_error").at(0);
  EXPECT_LT(bound, 5e-3);
  for (const Kernels kernels : kernels_here()) {
    Loaded loaded(kGoldens / name, kernels);
    const auto count =
        static_cast<int32_t>(static_cast<int64_t>(want.size()) / loaded.model->info().vocab_size);
    for (const int32_t chunk : {count, 7}) {
      TestRunner runner(*loaded.model, loaded.cx, 1, kFar + count, DType::kF32);
      runner.run({tokens.begin(), tokens.begin() + kAt}, kAt);
      runner.repeat(0, kPeriod, kFar);
      Logits got;
      for (int32_t i = 0; i < count; i += chunk) {
        const auto* const begin = tokens.data() + kAt;
        for (auto& row : runner.step({{0, {begin + i, begin + std::min(i + chunk, count)}}}))
          got.push_back(std::move(row));
      }
      EXPECT_LT(worst(got, want), bound) << kernels_name(kernels) << " " << chunk;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, FarGolden,
                         testing::Values("qwen3_next", "qwen3_next-128", "qwen3_next-spelling",
                                         "qwen3_next-yarn", "qwen3_5_moe", "qwen3_5"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

class StateGolden : public testing::TestWithParam<const char*> {};

// What recurrent layers carry after kAt tokens, whole and in pieces; and what follows from
// transformers' own states in place of these.
TEST_P(StateGolden, StatesEqualTransformersAndLeadOn) {
  const std::string name = GetParam();
  const std::vector<int32_t> tokens = tokens_of(name);
  const auto len = static_cast<int32_t>(tokens.size());
  const std::vector<float> logits = expected<float>(name, "logits");
  const double of_states = 5 * expected<float>(name, "state_error").at(0);
  const double of_logits = 5 * expected<float>(name, "own_error").at(0);
  EXPECT_GT(of_states, 0);
  EXPECT_LT(of_states, 1e-3);
  for (const Kernels kernels : kernels_here())
    for (const int32_t chunk : {kAt, 7, 1}) {
      Loaded loaded(kGoldens / name, kernels);
      TestRunner runner(*loaded.model, loaded.cx, 1, len, DType::kF32);
      runner.run({tokens.begin(), tokens.begin() + kAt}, chunk);
      int layers = 0;
      for (const LayerGroup& group : loaded.model->info().groups) {
        if (!group.is_recurrent()) continue;
        for (const int32_t l : group.layers) {
          const auto take = [&](std::span<float> got, const char* what) {
            const auto want = expected<float>(name, what + std::to_string(l));
            ASSERT_EQ(got.size(), want.size()) << what << l;
            for (size_t i = 0; i < want.size(); ++i)
              ASSERT_NEAR(got[i], want[i], of_states)
                  << what << l << " element " << i << " " << kernels_name(kernels);
            std::copy(want.begin(), want.end(), got.begin());
          };
          take(runner.state(l, 0), "state.");
          take(runner.conv(l, 0), "conv.");
          ++layers;
        }
      }
      EXPECT_GT(layers, 1);
      const Logits got = runner.step({{0, {tokens.begin() + kAt, tokens.end()}}});
      const size_t vocab = got[0].size();
      EXPECT_LT(worst(got, {logits.begin() + kAt * static_cast<int64_t>(vocab), logits.end()}),
                of_logits)
          << kernels_name(kernels) << " " << chunk;
    }
}

INSTANTIATE_TEST_SUITE_P(Cases, StateGolden, testing::Values("qwen3_next", "qwen3_5", "nemotron_h"),
                         [](const auto& info) { return std::string(info.param); });

// What NVIDIA's checkpoint of Qwen3-Next has in BF16 makes up most of what a token reads; Qwen's in
// FP8 leaves the gates' rows in BF16.
TEST(RecurrentFamilies, AsPublished) {
  const auto formats = [](const ModelInfo& info) {
    std::map<std::string, std::string> of;
    for (const WeightPart& part : info.parts) of[part.name] = part.formats;
    return of;
  };
  const ModelInfo nvfp4 = describe_model("nvidia/Qwen3-Next-80B-A3B-Instruct-NVFP4");
  EXPECT_EQ(nvfp4.parameters, 79'674'391'296);
  const auto parts = formats(nvfp4);
  EXPECT_EQ(parts.at("experts"), "nvfp4");
  EXPECT_EQ(parts.at("shared expert"), "nvfp4");
  EXPECT_EQ(parts.at("delta net"), "bf16, nvfp4");
  EXPECT_EQ(parts.at("attention"), "bf16, nvfp4");
  EXPECT_NEAR(static_cast<double>(nvfp4.weight_bytes_per_token), 4.15e9, 0.05e9);
  ASSERT_EQ(nvfp4.groups.size(), 2u);
  EXPECT_EQ(nvfp4.groups[0].layers.front(), 3);
  EXPECT_EQ(nvfp4.groups[0].layers.size(), 12u);
  EXPECT_EQ(nvfp4.groups[1].layers.size(), 36u);
  EXPECT_EQ(nvfp4.groups[1].recurrent.bytes(), 4 * (32 * 128 * 128 + 3 * 8192));
  const auto fp8 = formats(describe_model("Qwen/Qwen3-Next-80B-A3B-Instruct-FP8"));
  EXPECT_EQ(fp8.at("delta net"), "fp8_block");
  EXPECT_EQ(fp8.at("experts"), "fp8_block");
  EXPECT_EQ(fp8.at("router"), "bf16");

  // Attention and the six Mamba2 layers in front of it are BF16.
  const ModelInfo nano = describe_model("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4");
  const auto of_nano = formats(nano);
  EXPECT_EQ(nano.parameters, 31'577'940'288);  // a shared expert in two pieces counts once
  EXPECT_EQ(of_nano.at("experts"), "nvfp4");
  EXPECT_EQ(of_nano.at("shared expert"), "nvfp4");
  EXPECT_EQ(of_nano.at("mamba"), "bf16, nvfp4");
  EXPECT_EQ(of_nano.at("attention"), "bf16");
  EXPECT_NEAR(static_cast<double>(nano.weight_bytes_per_token), 2.87e9, 0.05e9);
  ASSERT_EQ(nano.groups.size(), 2u);
  EXPECT_EQ(nano.groups[0].layers, (std::vector<int32_t>{5, 12, 19, 26, 33, 42}));
  EXPECT_EQ(nano.groups[1].layers.size(), 23u);
  EXPECT_EQ(nano.groups[1].recurrent.bytes(), 4 * (64 * 128 * 64 + 3 * 6144));
}

// One number that is none would be a state that stays wrong.
TEST(RecurrentFamilies, WeightsThatAreNoNumbers) {
  const struct {
    std::string model, prefix, of;
  } kWeights[] = {{"qwen3_next", "model.layers.1.linear_attn.", "A_log"},
                  {"qwen3_next", "model.layers.1.linear_attn.", "dt_bias"},
                  {"qwen3_next", "model.layers.1.linear_attn.", "conv1d.weight"},
                  {"qwen3_next", "model.layers.1.linear_attn.", "norm.weight"},
                  {"nemotron_h", "backbone.layers.2.mixer.", "A_log"},
                  {"nemotron_h", "backbone.layers.2.mixer.", "D"},
                  {"nemotron_h", "backbone.layers.2.mixer.", "conv1d.bias"},
                  {"nemotron_h", "backbone.layers.1.mixer.", "gate.e_score_correction_bias"}};
  for (const auto& [model, prefix, of] : kWeights) {
    const std::string changed = prefix + of;
    const test::TempDir dir;
    write_changed(model, dir.path(), [&](const TensorInfo& t, std::vector<std::byte>& bytes) {
      const uint16_t nan = 0x7fc0;
      if (t.name == changed) std::memcpy(bytes.data() + bytes.size() - 2, &nan, 2);
    });
    try {
      Loaded loaded(dir.path(), cpu::Isa::kScalar);
      ADD_FAILURE() << changed;
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr("tensor \"" + changed + "\""));
      EXPECT_THAT(e.what(), HasSubstr("hold a value that is infinite or no number"));
    }
  }
}

// Whether a shared expert is one of the experts is for its tensors to say, not for the config.
TEST(RecurrentFamilies, SharedExpertsAreOfTheFormatTheyLieIn) {
  for (const Family family : {Family::kQwen3Next, Family::kNemotronH}) {
    SCOPED_TRACE(static_cast<int>(family));
    const RandomShape shape{.family = family, .seed = 3, .format = Format::kNvfp4};
    const std::string alike = random_config(shape);
    std::string apart = alike;
    const std::string ignored = R"("ignore": ["lm_head")";
    apart.replace(apart.find(ignored), ignored.size(), ignored + R"(, "*shared_expert*")");
    const auto text_of = [&](const std::filesystem::path& directory, const std::string& config) {
      std::ofstream(directory / "config.json") << config;
      Loaded loaded(directory, kTwins);
      bool is_joined = true;
      for (const ops::Site& site : sites_of(*loaded.model))
        if (const auto* down = std::get_if<ops::MoeDownDesc>(&site.problem))
          is_joined = is_joined && down->shared == 1;
      TestRunner runner(*loaded.model, loaded.cx, 1, 8, DType::kF32);
      return std::pair(is_joined, runner.run({1, 2, 3, 4, 5}, 128));
    };
    for (const bool is_joined : {false, true}) {
      const test::TempDir dir;
      write_random_checkpoint(shape, dir.path(), is_joined ? alike : apart);
      const auto by_right = text_of(dir.path(), is_joined ? alike : apart);
      EXPECT_EQ(by_right.first, is_joined);
      EXPECT_EQ(text_of(dir.path(), is_joined ? apart : alike), by_right);
    }
  }
}

// A shared expert twice as wide as the others is two of them, unless a block lies in both.
TEST(RecurrentFamilies, SharedExpertsWhoseHalvesShareABlock) {
  const test::TempDir directory;
  for (const auto& [width, is_two] : {std::pair(128, true), {192, false}, {1856, false}}) {
    RandomShape shape{.family = Family::kNemotronH, .width = width, .format = Format::kFp8Block};
    shape.shared_width = 2 * shape.width;
    test::write_file(directory / "config.json", random_config(shape));
    const ops::Sites sites = list_sites(directory / "config.json");
    EXPECT_EQ(std::ranges::none_of(
                  sites, [](const ops::Site& s) { return s.key.op == ops::Op::kSharedUp; }),
              is_two)
        << width;
  }
}

// Parts of one matrix that are no whole groups of rows, though together they are: what several
// tensors make is joined row by row.
TEST(RecurrentFamilies, JoinedRowsThatAreNoWholeGroups) {
  for (const Family family : {Family::kQwen35, Family::kQwen35Moe}) {
    const RandomShape shape{
        .family = family, .seed = 5, .format = Format::kFp8Row, .value_dim = 4};  // 40 and 8 rows
    const test::TempDir dir;
    write_random_checkpoint(shape, dir.path(), random_config(shape));
    const auto logits = [&](Kernels kernels) {
      Loaded loaded(dir.path(), kernels);
      TestRunner runner(*loaded.model, loaded.cx, 1, 8, DType::kF32);
      return runner.run({1, 2, 3, 4, 5}, 128);
    };
    // Sums of 64 float32 terms in other orders: 1e-6 of logits around one, and room for two layers
    // to amplify it. A row in another's place would be off by as much as rows are.
    const Logits want = logits(kTwins);
    for (const Kernels kernels : kernels_here()) {
      const Logits got = logits(kernels);
      for (size_t t = 0; t < want.size(); ++t)
        for (size_t n = 0; n < want[t].size(); ++n)
          EXPECT_NEAR(got[t][n], want[t][n], 1e-3) << kernels_name(kernels);
    }
  }
}

// As published: the router's matrix and bias, and what a recurrence has, may lie in float32.
TEST(RecurrentFamilies, VectorsAndRoutersInFloat32) {
  const test::TempDir dir;
  write_changed("nemotron_h", dir.path(), [](TensorInfo& t, auto& bytes) {
    const bool is_wide = t.name.find("mixer.gate.") != std::string::npos ||
                         t.name.ends_with("A_log") || t.name.ends_with(".D");
    if (is_wide) widen(t, bytes);
  });
  const std::vector<int32_t> tokens = tokens_of("nemotron_h");
  const auto run = [&](const std::filesystem::path& directory) {
    Loaded loaded(directory, kTwins);
    TestRunner runner(*loaded.model, loaded.cx, 1, static_cast<int32_t>(tokens.size()),
                      DType::kF32);
    return runner.run(tokens, 128);
  };
  EXPECT_EQ(run(dir.path()), run(kGoldens / "nemotron_h"));
}

}  // namespace
}  // namespace nibble
