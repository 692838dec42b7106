// gpt-oss against Hugging Face transformers, on small random checkpoints of odd shapes
// (tests/goldens/gpt_oss, written by tools/write_model_goldens.py).
#include "models/gpt_oss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "io/checkpoint.h"
#include "models/test_runner.h"

namespace nibble {
namespace {

const std::filesystem::path kGoldens =
    std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/goldens/gpt_oss";

// One tensor of expected/model.safetensors.
template <typename T>
std::vector<T> expected(const std::string& name, const std::string& tensor) {
  const auto checkpoint = open_checkpoint(kGoldens / name / "expected");
  const TensorInfo* info = checkpoint->find(tensor);
  EXPECT_NE(info, nullptr) << tensor;
  if (info == nullptr) return {};
  std::vector<T> values(info->bytes / sizeof(T));
  const ReadJob job = ReadJob::whole(*info, values.data());
  checkpoint->read({&job, 1});
  return values;
}

struct Golden {
  explicit Golden(const std::string& name)
      : rows(expected<int64_t>(name, "rows")), logits(expected<float>(name, "logits")) {
    for (int64_t token : expected<int64_t>(name, "tokens"))
      tokens.push_back(static_cast<int32_t>(token));
  }
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

class GptOssGolden : public testing::TestWithParam<const char*> {
 protected:
  cpu::ThreadPool pool_{2};
};

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
  for (cpu::Isa isa : {cpu::Isa::kScalar, cpu::Isa::kNeon, cpu::Isa::kAvx2, cpu::Isa::kAvx512}) {
    if (!cpu::supports(cpu::detect_isa(), isa)) continue;
    ops::Ctx cx{.pool = &pool_};
    cx.kernels.isa = isa;
    cx.kernels.allow_ref = isa == cpu::Isa::kScalar;
    const auto model = load_model(cx, kGoldens / GetParam(), {});
    model->reserve(cx, {512, 512});
    TestRunner runner(*model, cx, 1, static_cast<int32_t>(golden.tokens.size()), DType::kF32);
    const auto got = runner.run(golden.tokens, 512);
    EXPECT_LT(worst(got, golden), kFloatTolerance) << cpu::isa_name(isa);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GptOssGolden,
                         testing::Values("heads_6_2", "heads_8_1", "plain_rope", "attention_factor",
                                         "past_4096"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace nibble
