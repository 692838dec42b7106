#include "models/step_work.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nibble {
namespace {

constexpr char kModel[] = "openai/gpt-oss-120b";
constexpr DenseFormats kMxfp4 = {Format::kMxfp4, Format::kMxfp4, Format::kMxfp4};

int64_t bytes_of(const std::vector<OpWork>& ops, const std::string& op) {
  int64_t sum = 0;
  for (const OpWork& each : ops)
    if (each.op == op) sum += each.bytes;
  EXPECT_GT(sum, 0) << op;
  return sum;
}

// Besides weights a token moves about 36 layers x 20 vectors of 2,880 float32: 8 MB of 2.8 GB.
TEST(StepWork, OneTokenReadsItsWeights) {
  for (const DenseFormats& dense : {DenseFormats{}, kMxfp4}) {
    int64_t all = 0;
    for (const OpWork& op : describe_step_work(kModel, dense, {})) all += op.bytes;
    const auto weights = static_cast<double>(describe_model(kModel, dense).weight_bytes_per_token);
    EXPECT_NEAR(static_cast<double>(all), weights, 0.005 * weights);
  }
}

TEST(StepWork, ManyStreamsMeetNearlyAllExperts) {
  const auto ops = describe_step_work(kModel, kMxfp4, {.streams = 128});
  double experts = 0;
  for (const WeightPart& part : describe_model(kModel, kMxfp4).parts)
    if (part.name == "experts") experts = static_cast<double>(part.bytes);
  const double met = experts * (1 - std::pow(1 - 4.0 / 128, 128));
  // Their activations: 36 x 128 x 4 vectors of 2,880 float32 written and read, 0.5 GB of 60.
  EXPECT_NEAR(static_cast<double>(bytes_of(ops, "moe_up") + bytes_of(ops, "moe_down")), met,
              0.015 * met);
}

// Half the layers see 128 positions at most.
TEST(StepWork, AttentionReadsWhatWindowsLet) {
  const auto at = [](int64_t context) {
    return bytes_of(describe_step_work(kModel, kMxfp4, {.context = context}), "attention");
  };
  EXPECT_EQ(at(9000) - at(8000), 1000 * 18 * 2 * 8 * 64 * 2);
}

// Of a prompt of 3: what ModelInfo counts a token, and 6 pairs of a position and one it sees.
TEST(StepWork, PromptsMultiplyByAllThatTheyChoose) {
  const auto ops = describe_step_work(kModel, kMxfp4, {.tokens = 3, .logits = false});
  int64_t products = 0, attention = 0;
  for (const OpWork& op : ops) (op.op == "attention" ? attention : products) += op.flops;
  EXPECT_EQ(products, 3 * describe_model(kModel, kMxfp4).flops_per_token);
  EXPECT_EQ(attention, 36 * 6 * 4 * 64 * 64);
  EXPECT_EQ(ops.back().op, "norm_unembed");
  EXPECT_EQ(ops.back().bytes, 0);
}

// Behind the last attention only the rows that give logits go on, one of a prompt's or none.
TEST(StepWork, PromptsLeaveTheLastLayersExpertsOut) {
  for (const bool logits : {true, false}) {
    const auto prompt = describe_step_work(kModel, kMxfp4, {.tokens = 512, .logits = logits}),
               token = describe_step_work(kModel, kMxfp4, {});
    for (size_t i = 0; i < prompt.size(); ++i) {
      const bool is_behind = prompt[i].site == "norm_route.35" || prompt[i].site == "moe_up.35" ||
                             prompt[i].site == "moe_down.35";
      const bool is_head = prompt[i].op == "norm_unembed";
      EXPECT_EQ(prompt[i].tokens, is_behind || is_head ? 1 : 512) << prompt[i].site;
      EXPECT_EQ(prompt[i].bytes == token[i].bytes, is_behind || (is_head && logits))
          << prompt[i].site;
    }
  }
  // mlp_up and out_proj/down; a whole layer of Nemotron, with its shared expert.
  const auto few = [](const char* model) {
    int64_t sum = 0;
    for (const OpWork& op : describe_step_work(model, {}, {.streams = 2, .tokens = 256}))
      sum += op.tokens == 2 && op.op != "norm_unembed";
    return sum;
  };
  EXPECT_EQ(few("Qwen/Qwen3-8B"), 2);
  EXPECT_EQ(few("meta-llama/Llama-3.1-8B"), 2);
  EXPECT_EQ(few("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"), 3);
  // All of 64 sequences' next tokens give logits; so do most of short prompts.
  for (const StepShape& shape : {StepShape{.streams = 64}, StepShape{.streams = 64, .tokens = 15}})
    for (const OpWork& op : describe_step_work(kModel, kMxfp4, shape))
      EXPECT_EQ(op.tokens, op.op == "norm_unembed" ? 64 : 64 * shape.tokens);
}

}  // namespace
}  // namespace nibble
