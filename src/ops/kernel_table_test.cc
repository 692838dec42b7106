#include "ops/kernel_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/moe_down/moe_down.h"
#include "ops/moe_up/moe_up.h"

namespace nibble::ops {
namespace {

constexpr Swiglu kClamped{.limit = 7};
const MoeUpDesc kDesc{2880, 2880, 32, 4, Format::kMxfp4};

std::string picked(const KernelOptions& options, const MoeUpDesc& desc = kDesc) {
  return pick(Op::kMoeUp, moe_up_kernels(), desc, options).row->name;
}

std::string refusal(const KernelOptions& options, const MoeUpDesc& desc = kDesc) {
  try {
    picked(options, desc);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUnsupported);
    return e.what();
  }
  return "";
}

std::string reason_of(const std::vector<Refusal>& refused, const std::string& kernel) {
  const auto found = std::ranges::find(refused, kernel, &Refusal::kernel);
  return found == refused.end() ? "" : found->reason;
}

KernelOptions on(cpu::Isa isa) {
  KernelOptions options;
  options.isa = isa;
  return options;
}

TEST(KernelTable, ChoosesByInstructionSetWhateverMachineThisIs) {
  EXPECT_EQ(picked(on(cpu::Isa::kAvx512)), "avx512_float");
  EXPECT_EQ(picked(on(cpu::Isa::kAvx2)), "avx2_float");
  EXPECT_EQ(picked(on(cpu::Isa::kNeon)), "neon_float");
}

TEST(KernelTable, ListsEveryRefusal) {
  const auto chosen = pick(Op::kMoeUp, moe_up_kernels(), kDesc, on(cpu::Isa::kAvx2));
  ASSERT_EQ(chosen.refused.size(), 14u);
  EXPECT_EQ(chosen.refused[5].kernel, "avx2_int8");
  EXPECT_EQ(chosen.refused[5].reason, "activations are not int8");
  EXPECT_EQ(chosen.refused[13].kernel, "avx512_float");
  EXPECT_EQ(chosen.refused[13].reason, "needs AVX-512 F, BW, VL and DQ");
  KernelOptions forced = on(cpu::Isa::kScalar);
  forced.force("moe_up=ref");
  EXPECT_EQ(refusal(forced),
            "no kernel for moe_up:\n"
            "  amx_int8row: needs AMX (tile, int8, bf16)\n"
            "  amx_bf16_panels: needs AMX (tile, int8, bf16)\n"
            "  avx512_vnni_int8row: needs AVX-512 VNNI and VBMI\n"
            "  avx512_vnni_int8: needs AVX-512 VNNI and VBMI\n"
            "  avx_vnni_int8: needs AVX-VNNI\n"
            "  avx2_int8: needs AVX2 and FMA\n"
            "  neon_dot_int8: needs an arm64 CPU with dot products\n"
            "  avx512_bf16_panels: needs fast AVX-512 BF16\n"
            "  amx_bf16: needs AMX (tile, int8, bf16)\n"
            "  avx512_bf16: needs fast AVX-512 BF16\n"
            "  avx512_float_panels: needs AVX-512 F, BW, VL and DQ\n"
            "  avx2_float_panels: needs AVX2 and FMA\n"
            "  neon_float_panels: needs an arm64 CPU\n"
            "  avx512_float: needs AVX-512 F, BW, VL and DQ\n"
            "  avx2_float: needs AVX2 and FMA\n"
            "  neon_float: needs an arm64 CPU\n"
            "  avx512_any: needs AVX-512 F, BW, VL and DQ\n"
            "  avx2_any: needs AVX2 and FMA\n"
            "  neon_any: needs an arm64 CPU\n"
            "  plain_any: another kernel is forced\n"
            "  sm121_w4a8_gemm: needs an NVIDIA GPU\n"
            "  sm121_w4a4_gemm: needs an NVIDIA GPU\n"
            "  sm121_nvfp4a4_gemm: needs an NVIDIA GPU\n"
            "  sm121_nvfp4a8_gemm: needs an NVIDIA GPU\n"
            "  sm90_w4a8_narrow: needs an NVIDIA GPU\n"
            "  sm90_w4a8_gemm: needs an NVIDIA GPU\n"
            "  cuda_w4a16_each: needs an NVIDIA GPU\n"
            "  sm90_w4a16_gemm: needs an NVIDIA GPU\n"
            "  sm90_w4a16_narrow: needs an NVIDIA GPU\n"
            "  sm90_nvfp4a8_gemm: needs an NVIDIA GPU\n"
            "  cuda_nvfp4_one: needs an NVIDIA GPU\n"
            "  sm90_nvfp4_narrow: needs an NVIDIA GPU\n"
            "  sm90_nvfp4_gemm: needs an NVIDIA GPU\n"
            "  cuda_nvfp4_gemm: needs an NVIDIA GPU\n"
            "  cuda_nvfp4_decode: needs an NVIDIA GPU\n"
            "  sm90_w8a16_gemm: needs an NVIDIA GPU\n"
            "  cuda_w8a16_gemm: needs an NVIDIA GPU\n"
            "  cuda_w8a16_decode: needs an NVIDIA GPU\n"
            "  sm90_int4_gemm: needs an NVIDIA GPU\n"
            "  cuda_int4_gemm: needs an NVIDIA GPU\n"
            "  cuda_int4_decode: needs an NVIDIA GPU\n"
            "  cuda_w4a16_gemm: needs an NVIDIA GPU\n"
            "  cuda_w4a16_batch: needs an NVIDIA GPU\n"
            "  cuda_w4a16_decode: needs an NVIDIA GPU\n"
            "  cuda_any: needs an NVIDIA GPU\n"
            "  ref: a reference twin; only with --allow-ref");
}

// int8 products read panels and serve what lies so; the others of a layer run in floats.
TEST(KernelTable, Int8IsAChoiceOfLayers) {
  KernelOptions options = on(cpu::Isa::kAvx512Vnni);
  options.activations = ActFormat::kInt8;
  const auto chosen = pick(Op::kMoeUp, moe_up_kernels(), kDesc, options);
  EXPECT_STREQ(chosen.row->name, "avx512_vnni_int8");
  EXPECT_EQ(chosen.row->layout, Layout::kPanels16);
  options.isa = cpu::Isa::kAmx;
  EXPECT_EQ(picked(options), "avx512_vnni_int8");
  options.activations = ActFormat::kInt8Row;
  EXPECT_EQ(picked(options), "amx_int8row");
  options.isa = cpu::Isa::kAvx512Vnni;
  EXPECT_EQ(picked(options), "avx512_vnni_int8row");
  options.activations = ActFormat::kInt8;
  options.isa = cpu::Isa::kAvx512;
  EXPECT_EQ(picked(options), "avx2_int8");
  options.isa = cpu::Isa::kAvxVnni;
  EXPECT_EQ(picked(options), "avx_vnni_int8");
  options.isa = cpu::Isa::kNeonDot;
  EXPECT_EQ(picked(options), "neon_dot_int8");
  options.isa = cpu::Isa::kNeon;
  EXPECT_EQ(picked(options), "neon_float");
  MoeUpDesc desc = kDesc;
  desc.width = 36;  // rows of gates and ups: 72
  options.isa = cpu::Isa::kAvx512Vnni;
  const auto odd = pick(Op::kMoeUp, moe_up_kernels(), desc, options);
  EXPECT_STREQ(odd.row->name, "avx512_float");
  EXPECT_EQ(odd.row->layout, Layout::kRows);
  EXPECT_EQ(reason_of(odd.refused, "avx512_vnni_int8"), "its rows are not a multiple of 16");
  desc = kDesc;
  desc.format = Format::kBF16;
  EXPECT_EQ(
      reason_of(pick(Op::kMoeUp, moe_up_kernels(), desc, options).refused, "avx512_vnni_int8"),
      "int8 activations are for weights of 4 bits");
}

// Where activations may be rounded, weights in BF16 meet bf16 as they lie.
TEST(KernelTable, Bf16IsReadAsItLies) {
  MoeUpDesc desc = kDesc;
  desc.format = Format::kBF16;
  const auto named = [&](cpu::Isa isa, ActFormat activations) {
    KernelOptions options = on(isa);
    options.activations = activations;
    const auto chosen = pick(Op::kMoeUp, moe_up_kernels(), desc, options);
    EXPECT_EQ(chosen.row->layout, Layout::kRows);
    return std::string(chosen.row->name);
  };
  for (const ActFormat rounded : {ActFormat::kInt8, ActFormat::kInt8Row}) {
    EXPECT_EQ(named(cpu::Isa::kAmx, rounded), "amx_bf16");
    EXPECT_EQ(named(cpu::Isa::kAvx512Bf16, rounded), "avx512_bf16");
    EXPECT_EQ(named(cpu::Isa::kAvx512Vnni, rounded), "avx512_float");
  }
  EXPECT_EQ(named(cpu::Isa::kAvx512Bf16, ActFormat::kFloat), "avx512_float");
  EXPECT_EQ(named(cpu::Isa::kAvx512Bf16, ActFormat::kBF16), "avx512_float");
  desc.width = 36;  // rows of gates and ups: 72
  EXPECT_EQ(named(cpu::Isa::kAvx512Bf16, ActFormat::kInt8), "avx512_float");
}

// Weights of 4 bits go by int8 everywhere, one step per token or not; E4M3 and, on AMX, NVFP4 by
// bf16; by floats all of them but INT4 and MXFP4 from the same panels.
TEST(KernelTable, PanelsServeOtherFormats) {
  using enum Format;
  const auto named = [](Format format, cpu::Isa isa, ActFormat activations) {
    MoeUpDesc desc = kDesc;
    desc.format = format;
    KernelOptions options = on(isa);
    options.activations = activations;
    return picked(options, desc);
  };
  for (const ActFormat int8 : {ActFormat::kInt8, ActFormat::kInt8Row}) {
    for (const Format format : {kNvfp4, kInt4G32}) {
      EXPECT_EQ(named(format, cpu::Isa::kAvx512Vnni, int8), "avx512_vnni_int8");
      EXPECT_EQ(named(format, cpu::Isa::kAvx2, int8), "avx2_int8");
      EXPECT_EQ(named(format, cpu::Isa::kNeonDot, int8), "neon_dot_int8");
    }
    EXPECT_EQ(named(kNvfp4, cpu::Isa::kAmx, int8), "amx_bf16_panels");
    EXPECT_EQ(named(kInt4G32, cpu::Isa::kAmx, int8), "avx512_vnni_int8");
    for (const Format format : {kMxfp8, kFp8Row, kFp8Block}) {
      EXPECT_EQ(named(format, cpu::Isa::kAmx, int8), "amx_bf16_panels");
      EXPECT_EQ(named(format, cpu::Isa::kAvx512Bf16, int8), "avx512_bf16_panels");
      EXPECT_EQ(named(format, cpu::Isa::kAvx2, int8), "avx2_float_panels");
    }
  }
  for (const Format format : {kNvfp4, kMxfp8, kFp8Row, kFp8Block}) {
    EXPECT_EQ(named(format, cpu::Isa::kAvx512, ActFormat::kFloat), "avx512_float_panels");
    EXPECT_EQ(named(format, cpu::Isa::kNeon, ActFormat::kFloat), "neon_float_panels");
  }
}

// What has no row of its own runs by the last: any format and shape, on any CPU.
TEST(KernelTable, TheLastRowTakesWhatTheOthersRefuse) {
  MoeUpDesc desc = kDesc;
  desc.format = Format::kF32;
  const auto picked = pick(Op::kMoeUp, moe_up_kernels(), desc, on(cpu::Isa::kAvx2));
  EXPECT_STREQ(picked.row->name, "avx2_any");
  EXPECT_TRUE(is_general(picked.row->name));
  EXPECT_EQ(std::ranges::find(picked.refused, "avx2_float", &Refusal::kernel)->reason,
            "weights are neither bf16 nor mxfp4");
  EXPECT_STREQ(pick(Op::kMoeUp, moe_up_kernels(), kDesc, on(cpu::Isa::kScalar)).row->name,
               "plain_any");
}

TEST(KernelTable, OffersCpuRowsToCpusOnly) {
  KernelOptions options = on(cpu::Isa::kAvx512);
  options.allow_ref = true;
  for (const char* name : {"avx512_float", "ref"}) {
    const auto rows = moe_up_kernels();
    const auto row = std::find_if(rows.begin(), rows.end(),
                                  [&](const auto& r) { return std::string(r.name) == name; });
    ASSERT_NE(row, rows.end()) << name;
    options.gpu = {};
    EXPECT_EQ(row->refuse(kDesc, options), nullptr) << name;
    options.gpu = cuda::h200();
    EXPECT_STREQ(row->refuse(kDesc, options), "runs on CPUs") << name;
  }
}

TEST(KernelTable, ServesFewTokensOnGpus) {
  KernelOptions options;
  for (const cuda::Caps& gpu : {cuda::h200(), cuda::gb10()}) {
    options.gpu = gpu;
    const auto chosen = pick(Op::kMoeUp, moe_up_kernels(), kDesc, options);
    EXPECT_STREQ(chosen.row->name, "cuda_w4a16_decode");
    EXPECT_EQ(chosen.row->layout, Layout::kTiles16x64);
  }
  MoeUpDesc desc = kDesc;
  options.exact = false;
  desc.tokens = 4 * desc.experts / desc.top_k;
  EXPECT_STREQ(pick(Op::kMoeUp, moe_up_kernels(), desc, options).row->name, "cuda_w4a16_batch");
  desc.tokens = 8 * desc.experts / desc.top_k;
  EXPECT_STREQ(pick(Op::kMoeUp, moe_up_kernels(), desc, options).row->name, "cuda_w4a16_gemm");
  desc.tokens = 2 * desc.experts;
  options.gpu = cuda::h200();
  EXPECT_STREQ(pick(Op::kMoeUp, moe_up_kernels(), desc, options).row->name, "sm90_w4a16_narrow");
  options.exact = true;
  EXPECT_STREQ(pick(Op::kMoeUp, moe_up_kernels(), desc, options).row->name, "cuda_w4a16_decode");
  desc = kDesc;
  desc.hidden = 96;
  const auto general = pick(Op::kMoeUp, moe_up_kernels(), desc, options);
  EXPECT_STREQ(general.row->name, "cuda_any");
  EXPECT_EQ(general.row->layout, Layout::kRows);
  EXPECT_EQ(general.refused.back(),
            (Refusal{"cuda_w4a16_decode", "columns are not a multiple of 64"}));
}

// moe_up leaves E4M3 for moe_down: one that cannot take it keeps it from both.
TEST(KernelTable, BothProductsOfExpertsTakeE4M3OrNeither) {
  KernelOptions options;
  options.gpu = cuda::h200();
  options.activations = ActFormat::kFp8;
  const auto takes_e4m3 = [](const auto& picked) {
    return std::string_view(picked.row->name).starts_with("sm90_w4a8_");
  };
  bool some = false;
  constexpr int64_t kShapes[][2] = {
      {2880, 2880}, {5120, 2880}, {2880, 5120}, {2880, 2816}, {2896, 2880}};
  for (const auto& [hidden, width] : kShapes)
    for (const int64_t tokens : {1, 96, 128, 512, 897, 8192}) {
      const MoeUpDesc up{hidden, width, 128, 4, Format::kMxfp4, tokens, {}, kClamped};
      const MoeDownDesc down{hidden, width, 128, 4, Format::kMxfp4, tokens, {}, kClamped};
      const auto first = find_kernel(Op::kMoeUp, moe_up_kernels(), up, options);
      const auto second = find_kernel(Op::kMoeDown, moe_down_kernels(), down, options);
      const bool has_e4m3 = first.row != nullptr && takes_e4m3(first);
      EXPECT_EQ(has_e4m3, second.row != nullptr && takes_e4m3(second))
          << hidden << " x " << width << ", " << tokens << " tokens";
      some |= has_e4m3;
    }
  EXPECT_TRUE(some);
}

TEST(KernelTable, TunedExpertsTakeE4M3OnlyTogether) {
  constexpr int64_t kTokens = 64;  // two rows an expert: the tables themselves take bf16
  const MoeUpDesc up{2880, 2880, 128, 4, Format::kMxfp4, kTokens, {}, kClamped};
  const MoeDownDesc down{2880, 2880, 128, 4, Format::kMxfp4, kTokens, {}, kClamped};
  const TunedKernel up_fp8{Op::kMoeUp, "mxfp4", kTokens, "sm90_w4a8_narrow"},
      up_bf16{Op::kMoeUp, "mxfp4", kTokens, "cuda_w4a16_decode"},
      down_fp8{Op::kMoeDown, "mxfp4", kTokens, "sm90_w4a8_narrow"};
  const auto kernels = [&](std::vector<TunedKernel> tuned) {
    KernelOptions options;
    options.gpu = cuda::h200();
    options.activations = ActFormat::kFp8;
    options.tuned = std::move(tuned);
    return std::pair<std::string, std::string>(
        find_kernel(Op::kMoeUp, moe_up_kernels(), up, options).row->name,
        find_kernel(Op::kMoeDown, moe_down_kernels(), down, options).row->name);
  };
  const std::pair<std::string, std::string> fp8{"sm90_w4a8_narrow", "sm90_w4a8_narrow"},
      bf16{"cuda_w4a16_decode", "cuda_w4a16_decode"};
  EXPECT_EQ(kernels({}), bf16);
  EXPECT_EQ(kernels({up_fp8, down_fp8}), fp8);
  EXPECT_EQ(kernels({up_fp8}), bf16);
  EXPECT_EQ(kernels({down_fp8}), bf16);
  EXPECT_EQ(kernels({up_bf16, down_fp8}), bf16);
}

TEST(KernelTable, ForcesByName) {
  KernelOptions options = on(cpu::Isa::kAvx512);
  options.force("moe_up=avx2_float");
  options.force("attention=avx512_float");
  const auto refused = pick(Op::kMoeUp, moe_up_kernels(), kDesc, options).refused;
  EXPECT_EQ(refused.back(), (Refusal{"avx512_float", "another kernel is forced"}));
  EXPECT_EQ(refused.front(), (Refusal{"amx_int8row", "needs AMX (tile, int8, bf16)"}));
  options = on(cpu::Isa::kAvx512);
  options.force("moe_up=ref");
  EXPECT_NE(refusal(options).find("ref: a reference twin"), std::string::npos);
  options.allow_ref = true;
  EXPECT_EQ(picked(options), "ref");
  options.force("moe_up=ref");
  for (const char* bad : {"moe_up", "moe=avx2_float", "=x", ""})
    EXPECT_THROW(options.force(bad), Error) << bad;
}

}  // namespace
}  // namespace nibble::ops
