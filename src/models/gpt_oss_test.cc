// gpt-oss against Hugging Face transformers, on small random checkpoints of odd shapes
// (tests/goldens/gpt_oss, written by tools/write_model_goldens.py).
#include "models/gpt_oss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "io/io_test.h"
#include "models/test_goldens.h"

namespace nibble {
namespace {

const std::filesystem::path kGoldens =
    std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/goldens/gpt_oss";

struct Golden {
  explicit Golden(const std::string& name)
      : tokens(tokens_of(kGoldens / name)),
        rows(expected<int64_t>(kGoldens / name, "rows")),
        logits(expected<float>(kGoldens / name, "logits")) {}
  std::vector<int32_t> tokens;
  std::vector<int64_t> rows;
  std::vector<float> logits;  // [rows][V]
};

// float32 here and there, summed in other orders. A sum of K terms is off by about sqrt(K) 2^-24 of
// its size: 7e-7 for K = 160. Some eight such sums a layer, four layers, add up as a random walk to
// 4e-6 of the residual stream; the largest of 10^4 logits is four deviations out, 1.6e-5. What two
// kernels of the same width differ by (1e-5 measured) leaves a factor of six for unlucky prompts.
constexpr double kFloatTolerance = 1e-4;

double rms(const std::vector<float>& v) {
  double sum = 0;
  for (float x : v) sum += static_cast<double>(x) * x;
  return std::sqrt(sum / static_cast<double>(v.size()));
}

// A model loaded for one instruction set and one format of activations, on two workers.
struct Loaded {
  Loaded(const std::string& name, Kernels kernels, DType activations = DType::kF32) {
    cx.pool = &pool;
    cx.activations = activations;
    if (kernels)
      cx.kernels.isa = *kernels;
    else
      run_twins(cx.kernels);
    model = load_model(cx, kGoldens / name, {});
    model->reserve(cx, {512, 512});
  }
  cpu::ThreadPool pool{2};
  ops::Ctx cx;
  std::unique_ptr<Model> model;
};

class GptOssGolden : public testing::TestWithParam<const char*> {};

// Largest |got - expected| over the root mean square of expected.
double worst(const std::vector<std::vector<float>>& got, const Golden& golden) {
  const size_t vocab = got[0].size();
  double off = 0;
  for (size_t r = 0; r < golden.rows.size(); ++r)
    for (size_t n = 0; n < vocab; ++n)
      off = std::max(off, std::fabs(double{got[golden.rows[r]][n]} - golden.logits[r * vocab + n]));
  return off / rms(golden.logits);
}

TEST_P(GptOssGolden, LogitsEqualTransformers) {
  const Golden golden(GetParam());
  for (const Kernels kernels : kernels_here()) {
    Loaded loaded(GetParam(), kernels);
    TestRunner runner(*loaded.model, loaded.cx, 1, static_cast<int32_t>(golden.tokens.size()),
                      DType::kF32);
    EXPECT_LT(worst(runner.run(golden.tokens, 512), golden), kFloatTolerance)
        << kernels_name(kernels);
  }
}

// The residual stream that enters each layer, at the golden's rows.
TEST_P(GptOssGolden, ResidualStreamEqualsTransformers) {
  const Golden golden(GetParam());
  for (const Kernels kernels : kernels_here()) {
    Loaded loaded(GetParam(), kernels);
    std::map<int, std::vector<float>> x;  // by layer, all tokens
    loaded.cx.tap = [&](std::string_view name, int layer, const Tensor& value) {
      if (name != "x") return;
      const float* data = value.as<float>();
      x[layer].insert(x[layer].end(), data, data + value.num_elements());
    };
    TestRunner runner(*loaded.model, loaded.cx, 1, static_cast<int32_t>(golden.tokens.size()),
                      DType::kF32);
    runner.run(golden.tokens, 512);
    ASSERT_EQ(static_cast<int32_t>(x.size()), loaded.model->info().num_layers);
    for (const auto& [layer, got] : x) {
      const auto want = expected<float>(kGoldens / GetParam(), "x." + std::to_string(layer));
      const size_t hidden = got.size() / golden.tokens.size();
      double off = 0;
      for (size_t i = 0; i < want.size(); ++i)
        off = std::max(
            off, std::fabs(double{got[golden.rows[i / hidden] * hidden + i % hidden]} - want[i]));
      EXPECT_LT(off, kFloatTolerance * rms(want)) << kernels_name(kernels) << " layer " << layer;
    }
  }
}

// One reduction order whatever the step holds: the same bits in chunks of any size, and beside
// other sequences, with every kernel, format of activations and of pages.
TEST_P(GptOssGolden, TheSameBitsHoweverATokenIsComputed) {
  std::vector<int32_t> tokens = Golden(GetParam()).tokens;
  tokens.resize(std::min<size_t>(tokens.size(), 150));
  const auto len = static_cast<int32_t>(tokens.size());
  for (const Kernels kernels : kernels_here())
    for (auto [act, kv] : {std::pair{DType::kF32, DType::kBF16},
                           {DType::kBF16, DType::kBF16},
                           {DType::kF32, DType::kF32}}) {
      // The twins are slow, and have one order by construction.
      if (kernels == kTwins && (act == DType::kBF16 || kv == DType::kF32)) continue;
      SCOPED_TRACE(std::string(kernels_name(kernels)) + " " + dtype_name(act) + " " +
                   dtype_name(kv));
      Loaded loaded(GetParam(), kernels, act);
      TestRunner runner(*loaded.model, loaded.cx, 3, len, kv);
      const Logits whole = runner.run(tokens, 512);
      for (int32_t chunk : {1, 7, 64}) ASSERT_EQ(runner.run(tokens, chunk), whole) << chunk;
      // In slot 2, in uneven chunks, between a decoding and a prefilling neighbour.
      runner.clear(0), runner.clear(1), runner.clear(2);
      runner.step({{1, {tokens.begin(), tokens.begin() + 3}}});
      Logits mixed;
      for (int32_t begin = 0, n = 1; begin < len; begin += n, n = n % 5 + 2) {
        const int32_t end = std::min(len, begin + n);
        std::vector<TestChunk> chunks = {{2, {tokens.begin() + begin, tokens.begin() + end}}};
        if (begin < 30) chunks.insert(chunks.begin(), {1, {tokens[begin]}});
        if (begin < 20) chunks.push_back({0, {tokens[1], tokens[2], tokens[0]}});
        const Logits all = runner.step(chunks);
        const auto first = all.begin() + (begin < 30 ? 1 : 0);
        mixed.insert(mixed.end(), first, first + (end - begin));
      }
      ASSERT_EQ(mixed, whole);
    }
}

// Root mean square of got - expected over that of expected.
double rms_off(const Logits& got, const Golden& golden) {
  std::vector<float> off;
  const size_t vocab = got[0].size();
  for (size_t r = 0; r < golden.rows.size(); ++r)
    for (size_t n = 0; n < vocab; ++n)
      off.push_back(got[golden.rows[r]][n] - golden.logits[r * vocab + n]);
  return rms(off) / rms(golden.logits);
}

// bf16 rounds a value by 2^-8 / sqrt(3) of itself, root mean square: 0.23%. Eight stored values a
// layer, three layers, as a random walk: 1.1% of the residual stream, and twice that allows for
// what the layers amplify. Pages alone: two values a layer, 0.55%, twice that again. heads_8_1 uses
// all its experts, so that no choice can flip.
TEST(GptOss, Bf16IsOffByWhatItsRoundingsAddUpTo) {
  const Golden golden("heads_8_1");
  for (const Kernels kernels : kernels_here()) {
    for (auto [act, bound] : {std::pair{DType::kF32, 0.011}, {DType::kBF16, 0.022}}) {
      Loaded loaded("heads_8_1", kernels, act);
      TestRunner runner(*loaded.model, loaded.cx, 1, 300, DType::kBF16);
      const double off = rms_off(runner.run(golden.tokens, 512), golden);
      EXPECT_LT(off, bound) << kernels_name(kernels) << " " << dtype_name(act);
      EXPECT_GT(off, 1e-4);  // that anything was rounded at all
    }
  }
}

// Biases of experts are vectors, too: values of BF16 that lie in float32 are the same ones.
TEST(GptOss, BiasesInFloat32) {
  const test::TempDir dir;
  write_changed(kGoldens / "heads_6_2", dir.path(), [](TensorInfo& t, auto& bytes) {
    if (t.name.ends_with("_bias") || t.name.ends_with(".bias")) widen(t, bytes);
  });
  const Golden golden("heads_6_2");
  const auto run = [&](const std::string& directory) {
    Loaded loaded(directory, kTwins);
    TestRunner runner(*loaded.model, loaded.cx, 1, 48, DType::kF32);
    return runner.run(golden.tokens, 48);
  };
  EXPECT_EQ(run(dir.path().string()), run("heads_6_2"));
}

TEST(GptOss, DummyWeightsRunAndSpreadOverExperts) {
  cpu::ThreadPool pool(2);
  ops::Ctx cx{.pool = &pool};
  LoadOptions dummy;
  dummy.format = LoadFormat::kDummy;
  const auto model = load_model(cx, kGoldens / "heads_6_2" / "config.json", dummy);
  model->reserve(cx, {256, 256});
  std::vector<int64_t> counts(5);
  cx.tap = [&](std::string_view name, int, const Tensor& value) {
    if (name != "ids") return;
    for (int64_t i = 0; i < value.num_elements(); ++i) ++counts[value.as<int32_t>()[i]];
  };
  std::vector<int32_t> tokens(256);
  for (int32_t i = 0; i < 256; ++i) tokens[i] = i * 37 % 199;
  TestRunner runner(*model, cx, 1, 256, DType::kBF16);
  for (const auto& row : runner.run(tokens, 256))
    for (float x : row) ASSERT_TRUE(std::isfinite(x));
  // 256 tokens x 2 x 4 layers over 5 experts: 410 each. None starves, none takes half.
  for (int64_t n : counts) {
    EXPECT_GT(n, 40);
    EXPECT_LT(n, 1024);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GptOssGolden,
                         testing::Values("heads_6_2", "heads_8_1", "head_dim_64", "plain_rope",
                                         "attention_factor", "past_4096"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace nibble
