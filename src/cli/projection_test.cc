// The projection against what was measured: every plain row that an H200 timed by itself, at the
// sizes of step that such rows serve.
#include "cli/projection.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

namespace nibble::cli {
namespace {

using nlohmann::json;

constexpr const char* kMeasured =
    NIBBLE_SOURCE_DIR "/bench/results/2026-11-22-h200-gpt-oss-120b-ops.json";

// The sizes that a row is chosen for where no better one is.
bool serves(const std::string& op, const std::string& kernel, int64_t tokens) {
  if (kernel == "cuda_w4a16_batch") return tokens >= 128;
  if (kernel == "cuda_bf16_spans") return tokens > 256;
  if (kernel == "cuda_bf16_tokens") return tokens <= 64;
  if (kernel == "cuda_bf16_few") return tokens <= 4;
  if (kernel == "cuda_bf16_many") return tokens > 4;
  return op != "embed" && tokens <= 64;
}

// As `bench ops` names them: "attention @4096", "attention in 128 @4096".
const ops::Problem* problem_of(const std::vector<ops::Problem>& problems, const std::string& name) {
  const bool is_window = name.find(" in ") != std::string::npos;
  for (const ops::Problem& p : problems) {
    if (!name.starts_with(ops::op_name(ops::op_of(p)))) continue;
    const auto* attention = std::get_if<ops::AttentionDesc>(&p);
    if (attention == nullptr || (attention->window > 0) == is_window) return &p;
  }
  return nullptr;
}

TEST(Projection, IsWithin15PercentOfWhatAnH200Took) {
  std::ifstream file(kMeasured);
  const json measured = json::parse(file);
  const ProjectionDevice h200 = *find_projection_device("h200");
  EXPECT_NEAR(measured["read_bandwidth"].get<double>(), h200.bandwidth, 1e9);
  std::map<std::string, int> compared;
  for (const json& row : measured["rows"]) {
    const std::string op = row["op"], kernel = row["kernel"], weights = row["weights"];
    const int64_t tokens = row["tokens"];
    if (!kernel.starts_with("cuda_") || !serves(op, kernel, tokens)) continue;
    // The laboratory's figures of windows are of latency: 2 to 5 us, of which memory takes 0.1
    // to 2.
    const Format dense = weights == "mxfp4" ? Format::kMxfp4 : Format::kBF16;
    const auto problems = list_problems("openai/gpt-oss-120b", {dense, dense, dense});
    const ops::Problem* problem = problem_of(problems, op);
    ASSERT_NE(problem, nullptr) << op;
    const bool is_prompt = tokens > 256;
    const ops::StepShape shape{.streams = is_prompt ? 1 : tokens,
                               .tokens = is_prompt ? tokens : 1,
                               .context = 4096,
                               .act_bytes = 2};
    const auto time = project(*problem, kernel, shape, h200);
    ASSERT_TRUE(time) << op << " " << kernel;
    const double ratio = time->seconds() / row["seconds"].get<double>();
    EXPECT_NEAR(ratio, 1, 0.15) << op << " " << weights << " " << kernel << ", " << tokens
                                << " tokens: " << 1e6 * time->seconds() << " us projected, "
                                << 1e6 * row["seconds"].get<double>() << " measured, "
                                << time->bound();
    ++compared[kernel];
  }
  EXPECT_GE(compared["cuda_w4a16_decode"], 25);
  EXPECT_GE(compared["cuda_bf16_decode"], 15);
  EXPECT_GE(compared["cuda_w4a16_batch"], 8);
  EXPECT_GE(compared["cuda_bf16_tokens"] + compared["cuda_bf16_spans"], 10);
}

double seconds_of(const char* model, const DenseFormats& dense, ops::ActFormat activations,
                  const ops::StepShape& shape) {
  double sum = 0;
  for (const ProjectedOp& op :
       project_step(model, dense, activations, shape, *find_projection_device("gb10")))
    sum += op.time.seconds();
  return sum;
}

// What no H200 row stands for is bounded by what is certain: bytes of a token, and for prompts the
// arithmetic, which E4M3 halves.
TEST(Projection, OfNvfp4AndMxfp8IsNearItsBounds) {
  constexpr auto kBF16 = ops::ActFormat::kBF16, kFp8 = ops::ActFormat::kFp8;
  const ops::StepShape token{.context = 512, .act_bytes = 2};
  const ops::StepShape prompt{.tokens = 2048, .act_bytes = 2};
  constexpr Format k8 = Format::kMxfp8;
  const DenseFormats in_8{.qkv = k8, .out = k8, .unembed = k8};
  for (const auto& [model, dense, bytes, flops] :
       {std::tuple("nvidia/Qwen3-8B-NVFP4", DenseFormats{}, 5.1e9, 2 * 6.95e9),
        std::tuple("openai/gpt-oss-120b", in_8, 3.5e9, 2 * 4.5e9)}) {
    const double one = seconds_of(model, dense, kBF16, token);
    EXPECT_GT(one, bytes / 233e9) << model;
    EXPECT_LT(one, 1.4 * bytes / 233e9) << model;
    const double bf16 = seconds_of(model, dense, kBF16, prompt);
    const double fp8 = seconds_of(model, dense, kFp8, prompt);
    EXPECT_GT(fp8, 2048 * flops / (48 * 2.4e9 * 2048)) << model;
    EXPECT_LT(fp8, bf16) << model;
  }
}

}  // namespace
}  // namespace nibble::cli
