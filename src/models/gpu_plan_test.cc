// Kernels chosen for GPUs that are not here: every op of gpt-oss has one for steps of every size,
// on an H200 and on a GB10, with and without --exact.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "io/io_test.h"
#include "models/model.h"
#include "models/random_checkpoint.h"
#include "ops/general_rows.h"

namespace nibble {
namespace {

ops::Ctx on_gpu(const cuda::Caps& gpu, bool exact) {
  ops::Ctx cx;
  cx.kernels.gpu = gpu;
  cx.kernels.exact = exact;
  cx.kernels.activations = ops::ActFormat::kBF16;
  return cx;
}

using Case = std::tuple<bool, Format, bool>;  // is GB10, dense format, exact

class GpuPlan : public testing::TestWithParam<Case> {};

TEST_P(GpuPlan, HasAKernelForEveryOpAndSize) {
  const auto [is_gb10, dense, exact] = GetParam();
  const ops::Ctx cx = on_gpu(is_gb10 ? cuda::gb10() : cuda::h200(), exact);
  const std::vector<ops::PlanEntry> plan =
      plan_kernels(cx, "openai/gpt-oss-120b", {.qkv = dense, .out = dense, .unembed = dense});
  int64_t next = 1;  // entries of one site follow one another without a gap
  for (const ops::PlanEntry& entry : plan) {
    EXPECT_EQ(entry.min_tokens, next) << site_label(entry.site);
    next = entry.max_tokens == ops::kTokenBuckets.back() ? 1 : entry.max_tokens + 1;
    const std::string& name = entry.kernel;
    EXPECT_TRUE(name.starts_with("cuda_") || name.starts_with(is_gb10 ? "sm121_" : "sm90_"))
        << name;
  }
  EXPECT_EQ(next, 1);
  // One resident copy of the experts serves every size of step.
  for (const ops::PlanEntry& entry : plan) {
    if (entry.site.op == ops::Op::kMoeUp || entry.site.op == ops::Op::kMoeDown) {
      EXPECT_EQ(entry.weights, "mxfp4 in tiles16x64");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, GpuPlan,
                         testing::Combine(testing::Bool(),
                                          testing::Values(Format::kBF16, Format::kMxfp4,
                                                          Format::kNvfp4),
                                          testing::Bool()));

// Shapes that no other row takes: each op runs by its general one, on both machines, in every
// format, and no pair of moe_up and moe_down takes E4M3 by halves.
TEST(GpuPlanAnyShape, HasAKernelForEveryOpAndSize) {
  const test::TempDir directory;
  const auto write = [&](const RandomShape& shape) {
    std::ofstream(directory / "config.json") << random_config(shape);
    return directory.path().string();
  };
  for (const cuda::Caps& gpu : {cuda::h200(), cuda::gb10()})
    for (const Format dense : {Format::kBF16, Format::kMxfp4, Format::kMxfp8, Format::kNvfp4})
      for (const bool exact : {false, true}) {
        const std::string model = write({.hidden = 5984,
                                         .width = 96,
                                         .q_heads = 48,
                                         .kv_heads = 1,
                                         .head_dim = 502,
                                         .experts = 1024,
                                         .top_k = 32,
                                         .vocab = 61});
        const auto plan =
            plan_kernels(on_gpu(gpu, exact), model, {.qkv = dense, .out = dense, .unembed = dense});
        for (const ops::PlanEntry& entry : plan) {
          if (entry.site.op == ops::Op::kEmbed) continue;
          EXPECT_EQ(entry.kernel, "cuda_any") << ops::op_name(entry.site.op);
        }
        EXPECT_EQ(ops::say_general_rows(plan).size(), 7u);
      }
  // moe_up's columns are too many for tiles, moe_down's are not.
  ops::Ctx cx = on_gpu(cuda::h200(), false);
  cx.kernels.activations = ops::ActFormat::kFp8;
  const auto plan = plan_kernels(cx, write({.hidden = 4672, .width = 128}));
  for (const ops::PlanEntry& entry : plan) {
    if (entry.site.op != ops::Op::kMoeUp && entry.site.op != ops::Op::kMoeDown) continue;
    EXPECT_EQ(entry.weights,
              entry.site.op == ops::Op::kMoeUp ? "mxfp4 in rows" : "mxfp4 in tiles16x64");
    EXPECT_FALSE(entry.kernel.starts_with("sm90_w4a8_")) << entry.min_tokens << " tokens";
  }
}

// Published shapes: every matrix in NVFP4 or FP8 lies in tiles, and no size of step is left to the
// general rows.
TEST(GpuPlanTiles, EveryMatrixHasRowsOfItsOwn) {
  const std::tuple<const char*, std::string, std::string> kModels[] = {
      {"nvidia/Qwen3-8B-NVFP4", "nvfp4", "nvfp4"},
      {"nvidia/Llama-3.1-8B-Instruct-NVFP4", "nvfp4", "nvfp4"},
      {"nvidia/Qwen3-30B-A3B-NVFP4", "nvfp4", "nvfp4"},
      {"nvidia/Qwen3-Next-80B-A3B-Instruct-NVFP4", "nvfp4", "nvfp4"},
      {"nvidia/Llama-3.1-8B-Instruct-FP8", "fp8", "w8a16"},
      {"Qwen/Qwen3-8B-FP8", "fp8_block", "w8a16"},
      {"Qwen/Qwen3-30B-A3B-FP8", "fp8_block", "w8a16"}};
  for (const auto& [id, format, part] : kModels)
    for (const cuda::Caps& gpu : {cuda::h200(), cuda::gb10()})
      for (const bool exact : {false, true}) {
        int matrices = 0;
        for (const ops::PlanEntry& entry : plan_kernels(on_gpu(gpu, exact), id)) {
          if (!entry.weights.starts_with(format + " ")) continue;
          ++matrices;
          EXPECT_EQ(entry.weights, format + " in tiles16x64") << site_label(entry.site);
          EXPECT_NE(entry.kernel.find(part), std::string::npos)
              << id << " " << site_label(entry.site) << " by " << entry.kernel;
        }
        EXPECT_GE(matrices, 4 * 32) << id;
      }
}

std::string kernel_of(const std::vector<ops::PlanEntry>& plan, ops::Op op, int64_t tokens) {
  for (const ops::PlanEntry& entry : plan)
    if (entry.site.op == op && entry.min_tokens <= tokens && tokens <= entry.max_tokens)
      return entry.kernel;
  return "";
}

// Under --exact prompts of recurrent layers run token by token, by the general kernels: it is said.
TEST(GpuPlanExact, SaysWhatBecomesOfStates) {
  const std::pair<std::string, std::string> kLines[] = {
      {"nvidia/Qwen3-Next-80B-A3B-Instruct-NVFP4",
       "delta_rule of 36 layers by cuda_decode_or_any, which runs prompts as cuda_any does; "
       "cuda_chunks: --exact: a state would depend on how its text was cut"},
      {"nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4",
       "mamba2 of 23 layers by cuda_ring_or_any, which runs prompts as cuda_any does; cuda_ring: "
       "--exact: more than 31 tokens"}};
  for (const auto& [id, line] : kLines)
    for (const bool exact : {false, true}) {
      const auto lines = ops::say_general_rows(plan_kernels(on_gpu(cuda::h200(), exact), id));
      EXPECT_EQ(std::ranges::count(lines, line), exact ? 1 : 0) << testing::PrintToString(lines);
    }
}

// From 17 tokens (FP8: 9) and 12 rows an expert on, where the rows for few read matrices again.
TEST(GpuPlanTiles, ASparkTakesMmaForManyTokens) {
  using ops::Op;
  const auto expect = [](const char* id, const std::string& part, Op op, int64_t first) {
    const auto plan = plan_kernels(on_gpu(cuda::gb10(), false), id);
    for (const int64_t tokens : ops::kTokenBuckets) {
      if (tokens == 1) continue;  // alone it may have a row of its own
      EXPECT_EQ(kernel_of(plan, op, tokens),
                "cuda_" + part + (tokens >= first ? "_gemm" : "_decode"))
          << id << " " << ops::op_name(op) << " " << tokens;
    }
  };
  for (const Op op : {Op::kNormQkv, Op::kOutProj, Op::kMlpUp}) {
    expect("nvidia/Qwen3-8B-NVFP4", "nvfp4", op, 17);
    expect("nvidia/Llama-3.1-8B-Instruct-NVFP4", "nvfp4", op, 17);
    expect("nvidia/Llama-3.1-8B-Instruct-FP8", "w8a16", op, 9);
    expect("Qwen/Qwen3-8B-FP8", "w8a16", op, 9);
  }
  for (const Op op : {Op::kMoeUp, Op::kMoeDown}) {
    expect("nvidia/Qwen3-30B-A3B-NVFP4", "nvfp4", op, 12 * 128 / 8);
    expect("Qwen/Qwen3-30B-A3B-FP8", "w8a16", op, 12 * 128 / 8);
  }
}

// Experts of a few rows each, and gate and up, whose rows fill the GPU once.
TEST(GpuPlanTiles, AnH200TakesWgmmaForSomeTokens) {
  using ops::Op;
  const auto plan = plan_kernels(on_gpu(cuda::h200(), false), "nvidia/Qwen3-30B-A3B-NVFP4");
  for (const Op op : {Op::kMoeUp, Op::kMoeDown}) {
    for (const int64_t tokens : {1, 4}) EXPECT_EQ(kernel_of(plan, op, tokens), "cuda_nvfp4_one");
    for (const int64_t tokens : {8, 64, 128})
      EXPECT_EQ(kernel_of(plan, op, tokens), "sm90_nvfp4_narrow") << tokens;
    EXPECT_EQ(kernel_of(plan, op, 8192), "sm90_nvfp4_gemm");
  }
  // Of 512 experts and a shared one.
  const auto next =
      plan_kernels(on_gpu(cuda::h200(), false), "nvidia/Qwen3-Next-80B-A3B-Instruct-NVFP4");
  for (const Op op : {Op::kMoeUp, Op::kMoeDown}) {
    for (const int64_t tokens : {1, 2, 8}) EXPECT_EQ(kernel_of(next, op, tokens), "cuda_nvfp4_one");
    for (const int64_t tokens : {9, 64, 512})
      EXPECT_EQ(kernel_of(next, op, tokens), "sm90_nvfp4_narrow") << tokens;
    EXPECT_EQ(kernel_of(next, op, 8192), "sm90_nvfp4_gemm");
  }
  EXPECT_EQ(kernel_of(next, Op::kNormRoute, 8192), "sm90_bf16_gemm");
  EXPECT_EQ(kernel_of(next, Op::kOutProj, 8), "cuda_nvfp4_decode");  // of few rows
  // Of experts without a gate.
  const auto relu2 =
      plan_kernels(on_gpu(cuda::h200(), false), "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4");
  for (const Op op : {Op::kMoeUp, Op::kMoeDown}) {
    for (const int64_t tokens : {2, 8, 64, 128})
      EXPECT_EQ(kernel_of(relu2, op, tokens), "sm90_nvfp4_narrow") << tokens;
    EXPECT_EQ(kernel_of(relu2, op, 256), "sm90_nvfp4_gemm");
  }
  for (const char* id : {"nvidia/Qwen3-8B-NVFP4", "nvidia/Llama-3.1-8B-Instruct-NVFP4"}) {
    const auto dense = plan_kernels(on_gpu(cuda::h200(), false), id);
    for (const Op op : {Op::kNormQkv, Op::kOutProj, Op::kMlpUp})
      EXPECT_EQ(kernel_of(dense, op, 8), "sm90_nvfp4_f16") << id;
    for (const int64_t tokens : {16, 64})
      EXPECT_EQ(kernel_of(dense, Op::kMlpUp, tokens), "sm90_nvfp4_stream") << id << tokens;
    EXPECT_EQ(kernel_of(dense, Op::kMlpUp, 8192), "sm90_nvfp4_gemm") << id;
  }
}

// Nemotron-3-Nano's experts have columns that are no even parts, and two that are shared, which
// have no launch.
TEST(GpuPlanTiles, ASharedExpertTwiceAsWideIsTwo) {
  using ops::Op;
  const auto nano =
      plan_kernels(on_gpu(cuda::h200(), false), "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4");
  for (const Op op : {Op::kMoeUp, Op::kMoeDown})
    EXPECT_EQ(kernel_of(nano, op, 1), "cuda_nvfp4_one");
  EXPECT_EQ(kernel_of(nano, Op::kSharedUp, 1), "");
}

// MXFP4's rows take 256 experts, of which 8 are chosen: there a shared one stays by itself.
TEST(GpuPlanTiles, AFurtherExpertDoesNotCostMxfp4ItsRows) {
  std::ifstream golden(std::string(NIBBLE_SOURCE_DIR) +
                       "/tests/goldens/families/qwen3_next-alike/config.json");
  nlohmann::json config = nlohmann::json::parse(golden);
  config.update({{"hidden_size", 2048},
                 {"moe_intermediate_size", 512},
                 {"shared_expert_intermediate_size", 512}});
  config["quantization_config"]["quant_algo"] = "MXFP4";
  const test::TempDir directory;
  for (const auto& [experts, chosen, is_last] :
       {std::tuple{256, 8, false}, {256, 4, false}, {128, 8, false}, {128, 7, true}}) {
    config["num_experts"] = experts, config["num_experts_per_tok"] = chosen;
    std::ofstream(directory / "config.json") << config.dump();
    const auto plan = plan_kernels(on_gpu(cuda::h200(), false), directory.path().string());
    EXPECT_EQ(kernel_of(plan, ops::Op::kMoeUp, 1), "cuda_w4a16_decode") << experts << " " << chosen;
    EXPECT_EQ(kernel_of(plan, ops::Op::kSharedUp, 1).empty(), is_last) << experts << " " << chosen;
  }
}

// The other formats' rows take 16 choices of a token.
TEST(GpuPlanTiles, AFurtherExpertDoesNotCostNvfp4ItsRows) {
  std::ifstream golden(std::string(NIBBLE_SOURCE_DIR) +
                       "/tests/goldens/families/qwen3_next-alike/config.json");
  nlohmann::json config = nlohmann::json::parse(golden);
  config.update({{"hidden_size", 2048},
                 {"moe_intermediate_size", 512},
                 {"shared_expert_intermediate_size", 512},
                 {"num_experts", 64}});
  config["quantization_config"]["quant_algo"] = "NVFP4";
  const test::TempDir directory;
  for (const auto& [chosen, is_last] : {std::pair{15, true}, {16, false}}) {
    config["num_experts_per_tok"] = chosen;
    std::ofstream(directory / "config.json") << config.dump();
    const auto plan = plan_kernels(on_gpu(cuda::h200(), false), directory.path().string());
    EXPECT_EQ(kernel_of(plan, ops::Op::kMoeUp, 1), "cuda_nvfp4_one") << chosen;
    EXPECT_EQ(kernel_of(plan, ops::Op::kSharedUp, 1).empty(), is_last) << chosen;
  }
}

// moe_up leaves E4M3 for moe_down: neither takes that kernel where the other is forced to another.
TEST(GpuPlanFp8, ManyTokensTakeE4M3) {
  ops::Ctx cx = on_gpu(cuda::h200(), false);
  cx.kernels.activations = ops::ActFormat::kFp8;
  const DenseFormats dense{.qkv = Format::kMxfp4, .out = Format::kMxfp4, .unembed = Format::kBF16};
  const std::vector<ops::PlanEntry> plan = plan_kernels(cx, "openai/gpt-oss-120b", dense);
  for (const ops::Op op :
       {ops::Op::kNormQkv, ops::Op::kOutProj, ops::Op::kMoeUp, ops::Op::kMoeDown}) {
    EXPECT_EQ(kernel_of(plan, op, 8192), "sm90_w4a8_gemm") << ops::op_name(op);
    EXPECT_TRUE(kernel_of(plan, op, 1).starts_with("cuda_")) << ops::op_name(op);
  }
  EXPECT_EQ(kernel_of(plan, ops::Op::kNormUnembed, 8192), "sm90_bf16_gemm");
  for (const ops::Op op : {ops::Op::kMoeUp, ops::Op::kMoeDown})
    for (const int64_t tokens : {128, 256, 512})
      EXPECT_EQ(kernel_of(plan, op, tokens), "sm90_w4a8_narrow") << ops::op_name(op) << tokens;
  cx.kernels.force("moe_down=cuda_w4a16_decode");
  const std::vector<ops::PlanEntry> forced = plan_kernels(cx, "openai/gpt-oss-120b", dense);
  EXPECT_EQ(kernel_of(forced, ops::Op::kMoeUp, 8192), "sm90_w4a16_gemm");
  EXPECT_EQ(kernel_of(forced, ops::Op::kMoeDown, 8192), "cuda_w4a16_decode");
}

// Dense FP8 with scales of rows takes them, that in blocks does not.
TEST(GpuPlanFp8, Fp8WeightsByRowTakeE4M3) {
  ops::Ctx cx = on_gpu(cuda::h200(), false);
  cx.kernels.activations = ops::ActFormat::kFp8;
  const auto by_row = plan_kernels(cx, "nvidia/Llama-3.1-8B-Instruct-FP8");
  const auto in_blocks = plan_kernels(cx, "Qwen/Qwen3-8B-FP8");
  for (const ops::Op op : {ops::Op::kNormQkv, ops::Op::kOutProj, ops::Op::kMlpUp}) {
    EXPECT_EQ(kernel_of(by_row, op, 8192), "sm90_w8a8_gemm") << ops::op_name(op);
    EXPECT_EQ(kernel_of(by_row, op, 1), "cuda_w8a16_decode") << ops::op_name(op);
    EXPECT_EQ(kernel_of(in_blocks, op, 8192), "sm90_w8a16_gemm") << ops::op_name(op);
  }
}

// On a GB10 they go by block-scaled mma, dense matrices from the bucket of 5 tokens on, experts
// from 3 rows each; one copy of each matrix serves steps of every size.
TEST(GpuPlanFp8, ASparkTakesE4M3ByBlockScaledMma) {
  ops::Ctx cx = on_gpu(cuda::gb10(), false);
  cx.kernels.activations = ops::ActFormat::kFp8;
  const DenseFormats dense{.qkv = Format::kMxfp4, .out = Format::kMxfp4, .unembed = Format::kMxfp4};
  const auto plan = plan_kernels(cx, "openai/gpt-oss-120b", dense);
  EXPECT_TRUE(ops::resident_twice(plan).empty());
  const auto check = [&](ops::Op op, int64_t first) {
    for (const int64_t tokens : ops::kTokenBuckets)
      EXPECT_EQ(kernel_of(plan, op, tokens),
                tokens >= first ? "sm121_w4a8_gemm" : "cuda_w4a16_decode")
          << ops::op_name(op) << " " << tokens;
  };
  for (const ops::Op op : {ops::Op::kNormQkv, ops::Op::kOutProj, ops::Op::kNormUnembed})
    check(op, 8);
  for (const ops::Op op : {ops::Op::kMoeUp, ops::Op::kMoeDown}) check(op, 128);
  // Not by halves, not under --exact, not with activations in bf16.
  cx.kernels.force("moe_down=cuda_w4a16_decode");
  EXPECT_EQ(kernel_of(plan_kernels(cx, "openai/gpt-oss-120b", dense), ops::Op::kMoeUp, 8192),
            "cuda_w4a16_gemm");
  for (const bool exact : {false, true})
    for (const ops::PlanEntry& entry :
         plan_kernels(on_gpu(cuda::gb10(), exact), "openai/gpt-oss-120b", dense))
      EXPECT_FALSE(entry.kernel.starts_with("sm121_w4a8_")) << site_label(entry.site);
}

// So do other weights on a GB10: dense ones in 8 bits from the bucket of 5 tokens on, NVFP4 where
// the rows for few tokens would read it again. FP8 in blocks keeps bf16 activations.
TEST(GpuPlanFp8, ASparkTakesE4M3ForEveryFormatWithScalesThatItHas) {
  using ops::Op;
  ops::Ctx cx = on_gpu(cuda::gb10(), false);
  cx.kernels.activations = ops::ActFormat::kFp8;
  const auto check = [&](const std::vector<ops::PlanEntry>& plan, std::initializer_list<Op> of,
                         std::string_view kernel, int64_t first) {
    EXPECT_TRUE(ops::resident_twice(plan).empty()) << kernel;
    for (const Op op : of)
      for (const int64_t tokens : ops::kTokenBuckets)
        EXPECT_EQ(kernel_of(plan, op, tokens) == kernel, tokens >= first)
            << ops::op_name(op) << " " << tokens << " " << kernel_of(plan, op, tokens);
  };
  constexpr Format k8 = Format::kMxfp8;
  check(plan_kernels(cx, "openai/gpt-oss-120b", {.qkv = k8, .out = k8, .unembed = k8}),
        {Op::kNormQkv, Op::kOutProj, Op::kNormUnembed}, "sm121_w8a8_gemm", 8);
  check(plan_kernels(cx, "nvidia/Llama-3.1-8B-Instruct-FP8"),
        {Op::kNormQkv, Op::kOutProj, Op::kMlpUp}, "sm121_w8a8_gemm", 8);
  check(plan_kernels(cx, "nvidia/Qwen3-8B-NVFP4"), {Op::kNormQkv, Op::kOutProj, Op::kMlpUp},
        "sm121_nvfp4a8_gemm", 32);
  check(plan_kernels(cx, "nvidia/Qwen3-30B-A3B-NVFP4"), {Op::kMoeUp, Op::kMoeDown},
        "sm121_nvfp4a8_gemm", 256);
  for (const ops::PlanEntry& entry : plan_kernels(cx, "Qwen/Qwen3-8B-FP8"))
    EXPECT_FALSE(entry.kernel.starts_with("sm121_")) << site_label(entry.site);
  for (const bool exact : {false, true})
    for (const ops::PlanEntry& entry :
         plan_kernels(on_gpu(cuda::gb10(), exact), "nvidia/Qwen3-8B-NVFP4"))
      EXPECT_FALSE(entry.kernel.starts_with("sm121_")) << site_label(entry.site);
}

// With E2M1 activations weights of 4 bits go by OMMA where they went by QMMA, those of 8 bits as
// with E4M3; Hopper has no such rows, so that nothing there says fp4.
TEST(GpuPlanFp8, ASparkTakesE2M1ForWeightsOf4Bits) {
  using ops::Op;
  ops::Ctx cx = on_gpu(cuda::gb10(), false);
  cx.kernels.activations = ops::ActFormat::kFp4;
  const auto expect = [&](const char* id, const DenseFormats& dense, std::initializer_list<Op> of,
                          std::string_view kernel, int64_t first) {
    const auto plan = plan_kernels(cx, id, dense);
    EXPECT_TRUE(ops::resident_twice(plan).empty()) << kernel;
    for (const Op op : of)
      for (const int64_t tokens : ops::kTokenBuckets)
        EXPECT_EQ(kernel_of(plan, op, tokens) == kernel, tokens >= first)
            << ops::op_name(op) << " " << tokens << " " << kernel_of(plan, op, tokens);
  };
  constexpr Format k4 = Format::kMxfp4, k8 = Format::kMxfp8;
  const DenseFormats in_4{.qkv = k4, .out = k4, .unembed = k4};
  expect("openai/gpt-oss-120b", in_4, {Op::kNormQkv, Op::kOutProj, Op::kNormUnembed},
         "sm121_w4a4_gemm", 8);
  expect("openai/gpt-oss-120b", in_4, {Op::kMoeUp, Op::kMoeDown}, "sm121_w4a4_gemm", 128);
  expect("openai/gpt-oss-120b", {.qkv = k8, .out = k8, .unembed = k8},
         {Op::kNormQkv, Op::kOutProj, Op::kNormUnembed}, "sm121_w8a8_gemm", 8);
  expect("nvidia/Qwen3-8B-NVFP4", {}, {Op::kNormQkv, Op::kOutProj, Op::kMlpUp},
         "sm121_nvfp4a4_gemm", 32);
  expect("nvidia/Qwen3-30B-A3B-NVFP4", {}, {Op::kMoeUp, Op::kMoeDown}, "sm121_nvfp4a4_gemm", 256);
  cx.kernels.gpu = cuda::h200();
  for (const ops::PlanEntry& entry : plan_kernels(cx, "openai/gpt-oss-120b", in_4))
    EXPECT_EQ(entry.kernel.find("a4_"), std::string::npos) << site_label(entry.site);
}

// A model with delta nets, too, reads no matrix of a prompt again for every few tokens.
// Steps of 2 to 31 tokens of matrices with long rows, too, that the rows for few tokens do not
// take.
TEST(GpuPlanBf16, NoProductOfLlamaRunsByTheGeneralRowOnAnH200) {
  const auto plan =
      plan_kernels(on_gpu(cuda::h200(), /*exact=*/false), "meta-llama/Llama-3.1-8B-Instruct");
  bool streams = false;
  for (const ops::PlanEntry& entry : plan) {
    streams |= entry.kernel == "sm90_bf16_stream";
    if (entry.site.op != ops::Op::kOutProj && entry.site.op != ops::Op::kMlpUp) continue;
    EXPECT_FALSE(ops::is_general(entry.kernel))
        << site_label(entry.site) << " of up to " << entry.max_tokens << " tokens";
  }
  EXPECT_TRUE(streams);
}

TEST(GpuPlanBf16, ASparkTakesMmaForHybridModels) {
  using ops::Op;
  const auto plan =
      plan_kernels(on_gpu(cuda::gb10(), false), "nvidia/Qwen3-Next-80B-A3B-Instruct-NVFP4");
  for (const int64_t tokens : {32, 512, 8192})
    for (const Op op : {Op::kNormLinear, Op::kNormQkv})
      EXPECT_EQ(kernel_of(plan, op, tokens), "cuda_bf16_gemm") << tokens;
  for (const ops::PlanEntry& entry : plan) {
    if (entry.min_tokens > 8192 || entry.max_tokens < 8192) continue;
    EXPECT_FALSE(entry.kernel.ends_with("_decode") || entry.kernel.ends_with("_rows"))
        << site_label(entry.site) << " by " << entry.kernel;
  }
  EXPECT_EQ(kernel_of(plan, Op::kNormLinear, 1), "cuda_bf16_decode");
  EXPECT_EQ(kernel_of(plan, Op::kDeltaRule, 8192), "cuda_chunks");
}

// Heads of 256 dims: but for --exact's kernel, of which ptxas would spill registers.
TEST(GpuPlanBf16, ASparkAttendsToHeadsOf256Dims) {
  for (const bool exact : {false, true}) {
    const auto plan =
        plan_kernels(on_gpu(cuda::gb10(), exact), "nvidia/Qwen3-Next-80B-A3B-Instruct-NVFP4");
    for (const int64_t tokens : ops::kTokenBuckets)
      EXPECT_EQ(kernel_of(plan, ops::Op::kAttention, tokens),
                exact ? "cuda_any" : "cuda_bf16_spans");
  }
}

// Sources disagree whether a GB10 runs clusters: start-up asks, and one token has a row without.
TEST(GpuPlanBf16, AGpuWithoutClustersHasARowForOneToken) {
  cuda::Caps gpu = cuda::gb10();
  for (const bool has_clusters : {true, false}) {
    gpu.runs_clusters = has_clusters;
    const auto plan = plan_kernels(on_gpu(gpu, false), "openai/gpt-oss-120b", {});
    EXPECT_EQ(kernel_of(plan, ops::Op::kMoeDown, 1),
              has_clusters ? "cuda_w4a16_decode" : "cuda_w4a16_slots");
    for (const int64_t tokens : {2, 64})
      EXPECT_EQ(kernel_of(plan, ops::Op::kMoeDown, tokens), "cuda_w4a16_decode");
  }
}

// By default too no prompt runs through kernels that read a matrix again for every few tokens.
TEST(GpuPlanBf16, ASparkTakesMmaForManyTokens) {
  const auto plan = plan_kernels(on_gpu(cuda::gb10(), false), "openai/gpt-oss-120b", {});
  for (const int64_t tokens : ops::kTokenBuckets) {
    for (const ops::Op op : {ops::Op::kNormQkv, ops::Op::kOutProj, ops::Op::kNormUnembed})
      EXPECT_EQ(kernel_of(plan, op, tokens), tokens >= 16 ? "cuda_bf16_gemm" : "cuda_bf16_decode")
          << ops::op_name(op) << " " << tokens;
    for (const ops::Op op : {ops::Op::kMoeUp, ops::Op::kMoeDown})
      EXPECT_EQ(kernel_of(plan, op, tokens), tokens >= 256   ? "cuda_w4a16_gemm"
                                             : tokens >= 128 ? "cuda_w4a16_batch"
                                                             : "cuda_w4a16_decode")
          << ops::op_name(op) << " " << tokens;
  }
}

}  // namespace
}  // namespace nibble
