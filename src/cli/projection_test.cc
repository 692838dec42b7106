// The projection against what was measured: every plain row that an H200 timed by itself, at the
// sizes of step that such rows serve.
#include "cli/projection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "models/model.h"

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

// Qwen3-Next's, microseconds of a layer from docs/lab/delta-net.md. Not those of 4 and 8 sequences,
// whose states lay in the L2 cache there.
TEST(Projection, OfDeltaNetsIsWithin15PercentOfWhatAnH200Took) {
  const ops::DeltaRuleDesc layer{
      .key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128, .taps = 4};
  for (const auto& [kernel, streams, tokens, us] :
       {std::tuple("cuda_decode", 1, 1, 6.6), std::tuple("cuda_chunks", 16, 1, 26.9),
        std::tuple("cuda_chunks", 32, 1, 43.9), std::tuple("cuda_chunks", 64, 1, 82.7),
        std::tuple("cuda_chunks", 256, 1, 310.9), std::tuple("cuda_chunks", 1, 512, 88.6),
        std::tuple("cuda_chunks", 1, 2048, 275.9), std::tuple("cuda_chunks", 1, 8192, 1028.)}) {
    const ops::StepShape shape{.streams = streams, .tokens = tokens, .act_bytes = 2};
    const auto time = project(layer, kernel, shape, *find_projection_device("h200"));
    ASSERT_TRUE(time);
    EXPECT_NEAR(1e6 * time->seconds() / us, 1, 0.15) << kernel << " " << streams << " " << tokens;
  }
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
    const double read = bytes / find_projection_device("gb10")->bandwidth;
    EXPECT_GT(one, read) << model;
    EXPECT_LT(one, 1.4 * read) << model;
    const double bf16 = seconds_of(model, dense, kBF16, prompt);
    const double fp8 = seconds_of(model, dense, kFp8, prompt);
    EXPECT_GT(fp8, 2048 * flops / (48 * 2.4e9 * 2048)) << model;
    EXPECT_LT(fp8, bf16) << model;
  }
}

// gpt-oss-120b's token is 218 launches: six a layer, the embedding's and the head's. Steps of more
// tokens norm before qkv and the head, route in two launches and add up what experts say.
TEST(Projection, CountsLaunches) {
  constexpr Format k4 = Format::kMxfp4;
  const ProjectionDevice gb10 = *find_projection_device("gb10");
  const auto launches = [&](const DenseFormats& dense, ops::ActFormat activations,
                            int64_t streams) {
    return launches_of(project_step("openai/gpt-oss-120b", dense, activations,
                                    {.streams = streams, .context = 512, .act_bytes = 2}, gb10));
  };
  for (const DenseFormats& dense : {DenseFormats{}, DenseFormats{k4, k4, k4, k4}}) {
    EXPECT_EQ(launches(dense, ops::ActFormat::kBF16, 1), 36 * 6 + 2);
    EXPECT_EQ(launches(dense, ops::ActFormat::kBF16, 4), 36 * 8 + 3);
    EXPECT_EQ(launches(dense, ops::ActFormat::kBF16, 8), 36 * 9 + 3);
  }
  // What enters products in E4M3 is rounded first, in a launch of its own; u is made so.
  EXPECT_EQ(launches({k4, k4, k4, k4}, ops::ActFormat::kFp8, 8), 36 * 11 + 4);
  EXPECT_EQ(launches({k4, k4, k4, k4}, ops::ActFormat::kFp8, 256), 36 * 12 + 4);
  EXPECT_EQ(launches({k4, k4, k4, k4}, ops::ActFormat::kFp8, 512), 0);  // not counted
}

// What launches of one op hand each other in memory, by hand: of moe_down 4 u in E4M3, read; 4 rows
// in bf16, written and read; d in float32. Its weights are 128 experts' of 2,880 x 2,880.
TEST(Projection, CountsWhatLaunchesHandEachOther) {
  constexpr Format k4 = Format::kMxfp4;
  constexpr double kTokens = 2048, kH = 2880;
  const ops::StepShape prompt{.tokens = 2048, .act_bytes = 2};
  for (const auto& [activations, of_u] :
       {std::pair(ops::ActFormat::kFp8, 4.), std::pair(ops::ActFormat::kBF16, 8.)}) {
    double bytes = 0;
    for (const ProjectedOp& op : project_step("openai/gpt-oss-120b", {k4, k4, k4, k4}, activations,
                                              prompt, *find_projection_device("gb10")))
      if (op.op == "moe_down" && op.sites == 35) bytes = op.time.bytes / 35;
    const double weights = 128 * (kH * kH * 17 / 32 + 2 * kH);
    EXPECT_NEAR(bytes, weights + kTokens * kH * (of_u + 16 + 4), 1e-3 * bytes);
  }
}

// gpt-oss-120b on a GB10: the goals that docs/gpu.md has it reach, and what is never faster, 35
// layers' experts at the whole read rate. A prompt of 512 tokens is little else.
TEST(Projection, OfGptOssOnAGb10) {
  constexpr Format k4 = Format::kMxfp4;
  const auto rate = [&](const ops::StepShape& shape) {
    return static_cast<double>(shape.streams * shape.tokens) /
           seconds_of("openai/gpt-oss-120b", {k4, k4, k4, k4}, ops::ActFormat::kFp8, shape);
  };
  const auto prompt = [&](int64_t tokens) { return rate({.tokens = tokens, .act_bytes = 2}); };
  const double decode = rate({.context = 2048, .act_bytes = 2});
  EXPECT_GT(decode, 72);
  EXPECT_LT(decode, 80);
  EXPECT_GT(prompt(8192), 11000);
  const auto parts = describe_model("openai/gpt-oss-120b", {k4, k4, k4, k4}).parts;
  const auto experts = std::ranges::find(parts, "experts", &WeightPart::name);
  ASSERT_NE(experts, parts.end());
  const double read =
      static_cast<double>(experts->bytes) * 35 / 36 / find_projection_device("gb10")->bandwidth;
  for (const int64_t tokens : {512, 2048})
    EXPECT_LT(prompt(tokens), static_cast<double>(tokens) / read);
  EXPECT_GT(prompt(512), 0.8 * 512 / read);
}

// E2M1 activations halve a dense model's arithmetic once more. gpt-oss's prompts, whose experts'
// bytes bind, gain nothing, and lose a pass over what enters moe_down.
TEST(Projection, OfE2M1IsFasterWhereMathBinds) {
  constexpr Format k4 = Format::kMxfp4;
  const ops::StepShape prompt{.tokens = 8192, .act_bytes = 2};
  const auto ratio = [&](const char* model, const DenseFormats& dense) {
    return seconds_of(model, dense, ops::ActFormat::kFp4, prompt) /
           seconds_of(model, dense, ops::ActFormat::kFp8, prompt);
  };
  const double dense = ratio("nvidia/Qwen3-8B-NVFP4", {});
  EXPECT_GT(dense, 0.5);
  EXPECT_LT(dense, 0.8);
  const double experts = ratio("openai/gpt-oss-120b", {.qkv = k4, .out = k4, .unembed = k4});
  EXPECT_GT(experts, 0.95);
  EXPECT_LT(experts, 1.1);
}

// Models with states: near their bytes for a token, and for prompts above their arithmetic.
TEST(Projection, OfHybridModelsIsNearItsBounds) {
  const ops::StepShape token{.context = 512, .act_bytes = 2};
  const ops::StepShape prompt{.tokens = 2048, .act_bytes = 2};
  const char* const model = "nvidia/Qwen3-Next-80B-A3B-Instruct-NVFP4";
  constexpr double kBytes = 4.3e9, kFlops = 2 * 3e9;  // of a token
  for (const ops::ActFormat activations : {ops::ActFormat::kBF16, ops::ActFormat::kFp8}) {
    const double one = seconds_of(model, {}, activations, token);
    EXPECT_GT(one, kBytes / 233e9);
    EXPECT_LT(one, 1.5 * kBytes / 233e9);
    EXPECT_GT(seconds_of(model, {}, activations, prompt), 2048 * kFlops / (48 * 2.4e9 * 2048));
  }
}

}  // namespace
}  // namespace nibble::cli
