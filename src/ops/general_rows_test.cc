#include "ops/general_rows.h"

#include <gtest/gtest.h>

#include "ops/refuse.h"
#include "ops/site.h"

namespace nibble::ops {
namespace {

TEST(GeneralRows, AreSaidWithTheNearestBetterRow) {
  const Refusal cpu{"avx2_float", kRunsOnCpus}, wide{"cuda_w4a16_decode", "more than 4608 columns"};
  const Refusal few{"sm90_w4a16_gemm", "too few tokens to fill its tiles"};
  const std::vector<PlanEntry> entries = {
      {{Op::kEmbed, -1}, 1, 512, "cuda_any", {cpu, {"cuda_bf16", "needs a bf16 table"}}},
      {{Op::kMoeUp, 0}, 1, 16, "cuda_any", {few, wide, cpu}},
      {{Op::kMoeUp, 0}, 17, 512, "cuda_any", {wide, cpu}},
      {{Op::kMoeUp, 1}, 1, 512, "cuda_any", {wide, cpu}},
      {{Op::kOutputGate, 1}, 1, 512, "cuda_any", {cpu}},
      {{Op::kMoeDown, 0}, 1, 512, "cuda_w4a16_decode", {cpu}}};
  EXPECT_EQ(say_general_rows(entries),
            (std::vector<std::string>{
                "embed by cuda_any, which takes any shape; cuda_bf16: needs a bf16 table",
                "moe_up of 2 layers by cuda_any, which takes any shape; cuda_w4a16_decode: more "
                "than 4608 columns"}));
  EXPECT_TRUE(say_general_rows({}).empty());
}

TEST(GeneralRows, AreSaidWithTheSizeOfTheStepWhereNothingElseRefuses) {
  const Refusal cpu{"avx2_float", kRunsOnCpus}, wide{"cuda_w4a16_decode", "more than 4608 columns"};
  const Refusal few{"sm90_w4a16_gemm", "too few tokens to fill its tiles"};
  const auto said = [](const std::vector<std::vector<Refusal>>& refused) {
    std::vector<PlanEntry> entries;
    for (const auto& of : refused) entries.push_back({{Op::kMoeUp, 0}, 1, 512, "cuda_any", of});
    const std::string line = say_general_rows(entries).at(0);
    return line.substr(line.find("; ") + 2);
  };
  for (const std::vector<Refusal>& refused : {std::vector{wide, few, cpu}, {few, wide, cpu}})
    EXPECT_EQ(said({refused}), "cuda_w4a16_decode: more than 4608 columns");
  EXPECT_EQ(said({{few, cpu}}), "sm90_w4a16_gemm: too few tokens to fill its tiles");
  EXPECT_EQ(said({{few, cpu}, {wide, cpu}}), "cuda_w4a16_decode: more than 4608 columns");
}

// Every reason of the tables that another number of tokens makes go away, and no other.
template <typename Desc, typename Fn>
void expect_sizes_of_steps(std::span<const Kernel<Desc, Fn>> table, Desc desc) {
  for (const cuda::Caps& gpu : {cuda::h200(), cuda::gb10()})
    for (const ActFormat activations : {ActFormat::kBF16, ActFormat::kFp8, ActFormat::kFp4})
      for (const auto& row : table) {
        KernelOptions options{.activations = activations};
        options.gpu = gpu;
        std::vector<const char*> reasons;
        for (const int64_t tokens : kTokenBuckets) {
          desc.tokens = tokens;
          reasons.push_back(row.refuse(desc, options));
        }
        const bool serves_some = std::ranges::find(reasons, nullptr) != reasons.end();
        for (const char* reason : reasons)
          EXPECT_TRUE(reason == nullptr || !serves_some || is_of_step_size(reason))
              << row.name << ": " << reason;
      }
}

TEST(GeneralRows, KnowTheReasonsThatAreOfAStepsSize) {
  for (const Format format : {Format::kBF16, Format::kMxfp4, Format::kNvfp4, Format::kFp8Row,
                              Format::kFp8Block, Format::kMxfp8, Format::kInt4G128})
    for (const int64_t hidden : {2048, 2880, 4096, 8192}) {
      SCOPED_TRACE(std::string(format_name(format)) + ", " + std::to_string(hidden));
      for (const int64_t rows : {2048, 4096}) {
        expect_sizes_of_steps(out_proj_kernels(), OutProjDesc{hidden, rows, format});
        expect_sizes_of_steps(norm_linear_kernels(), NormLinearDesc{hidden, rows, format});
        expect_sizes_of_steps(mlp_up_kernels(), MlpUpDesc{hidden, rows, format});
        expect_sizes_of_steps(norm_unembed_kernels(), NormUnembedDesc{hidden, 32 * rows, format});
      }
      expect_sizes_of_steps(norm_route_kernels(),
                            NormRouteDesc{.hidden = hidden, .experts = 128, .top_k = 8});
      expect_sizes_of_steps(norm_qkv_kernels(), NormQkvDesc{hidden, 32, 8, 128, format});
      expect_sizes_of_steps(
          moe_up_kernels(),
          MoeUpDesc{.hidden = hidden, .width = 768, .experts = 128, .top_k = 8, .format = format});
      expect_sizes_of_steps(
          moe_down_kernels(),
          MoeDownDesc{
              .hidden = hidden, .width = 768, .experts = 128, .top_k = 8, .format = format});
    }
  expect_sizes_of_steps(delta_rule_kernels(), DeltaRuleDesc{16, 32, 128, 128, 4});
  expect_sizes_of_steps(mamba2_kernels(), Mamba2Desc{64, 8, 64, 128, 4});
}

// The last row of the desc's table for a kind of device takes it in steps of every size.
template <typename Desc>
void expect_general(Desc desc, const std::string& what) {
  for (const cuda::Caps& gpu : {cuda::Caps{}, cuda::h200(), cuda::gb10()})
    for (const bool exact : {false, true}) {
      KernelOptions options{.isa = cpu::Isa::kScalar, .exact = exact};
      if (gpu.sm != 0) options.activations = ActFormat::kBF16;
      options.gpu = gpu;
      for (const int64_t tokens : kTokenBuckets) {
        desc.tokens = tokens;
        const auto* general =
            static_cast<const typename decltype(kernels_of(desc))::value_type*>(nullptr);
        for (const auto& row : kernels_of(desc))
          if (std::string_view(row.name) != "ref" && row.refuse(desc, options) == nullptr)
            general = &row;
        ASSERT_NE(general, nullptr) << op_name(op_of(desc)) << ", " << what;
        EXPECT_EQ(general->layout, Layout::kRows) << general->name << ", " << what;
      }
    }
}

TEST(GeneralRows, TakeEveryShapeAndFormat) {
  for (const FormatRow& row : kFormats) {
    const Format format = row.format;
    const std::string name(row.name);
    for (const int64_t k : {int64_t{128}, int64_t{131072}, int64_t{row.block_elems}})
      for (const int64_t n : {1, 7, 131071}) {
        expect_general(EmbedDesc{n, k, format}, name);
        expect_general(OutProjDesc{n, k, format}, name);
        expect_general(NormLinearDesc{k, n, format}, name);
        expect_general(NormUnembedDesc{k, n, format}, name);
        for (const Swiglu& act : {Swiglu{}, kRelu2}) {
          expect_general(MlpUpDesc{.hidden = k, .width = n, .format = format, .act = act}, name);
          expect_general(SharedUpDesc{.hidden = k, .width = n, .format = format, .act = act}, name);
        }
      }
    for (const int64_t dim : {2, 18, 64, 256, 502, 512})
      for (const int64_t heads : {1, 3, 17, 96})
        for (const bool norms : {false, true})
          expect_general(NormQkvDesc{.hidden = 256,
                                     .q_heads = 3 * heads,
                                     .kv_heads = heads,
                                     .head_dim = dim,
                                     .format = format,
                                     .norms_heads = norms},
                         name);
    for (const auto& [experts, top_k] : {std::pair(1, 1), {7, 5}, {512, 10}, {1024, 32}})
      for (const Swiglu& act : {Swiglu{}, Swiglu{.limit = 7}, kRelu2}) {
        expect_general(NormRouteDesc{.hidden = 256, .experts = experts, .top_k = top_k}, name);
        expect_general(MoeUpDesc{.hidden = 256,
                                 .width = 128,
                                 .experts = experts,
                                 .top_k = top_k,
                                 .format = format,
                                 .act = act},
                       name);
        expect_general(MoeDownDesc{.hidden = 37,
                                   .width = 256,
                                   .experts = experts,
                                   .top_k = top_k,
                                   .format = format,
                                   .act = act},
                       name);
      }
  }
  for (const int64_t dim : {2, 18, 64, 256, 502, 512})
    for (const int64_t group : {1, 3, 7, 40}) {
      expect_general(AttentionDesc{3 * group, 3, dim}, std::to_string(dim));
      expect_general(OutputGateDesc{3 * group * dim}, std::to_string(dim));
    }
  for (const int64_t dim : {3, 64, 128, 256})
    for (const int64_t ratio : {1, 3, 128}) {
      expect_general(DeltaRuleDesc{.key_heads = 2,
                                   .value_heads = 2 * ratio,
                                   .key_dim = dim,
                                   .value_dim = 2 * dim + 1,
                                   .taps = 4},
                     std::to_string(dim));
      expect_general(Mamba2Desc{.heads = 2 * ratio,
                                .groups = 2,
                                .head_dim = 2 * dim + 1,
                                .state_dim = dim,
                                .taps = 4},
                     std::to_string(dim));
    }
}

TEST(GeneralRows, AreNotSaidWithRowsOfOtherMachines) {
  const Refusal wide{"avx2_mxfp8", "weights are not mxfp8"},
      arm{"neon_float", "needs an arm64 CPU"};
  const Refusal amx{"amx_int8row", "needs AMX (tile, int8, bf16)"};
  const Refusal wgmma{"sm90_w4a16_gemm", "needs wgmma: a Hopper GPU"};
  const std::vector<PlanEntry> entries = {
      {{Op::kOutProj, 0}, 1, 512, "avx2_any", {amx, wide, wgmma, arm}},
      {{Op::kNormUnembed, -1}, 1, 512, "plain_any", {amx, arm}}};
  EXPECT_EQ(say_general_rows(entries),
            (std::vector<std::string>{
                "out_proj of 1 layer by avx2_any, which takes any shape; avx2_mxfp8: weights are "
                "not mxfp8",
                "norm_unembed by plain_any, which takes any shape; the better ones are for other "
                "machines"}));
}

}  // namespace
}  // namespace nibble::ops
