#include "cli/kernel_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "cli/run_for_test.h"
#include "ops/moe_up/moe_up.h"
#include "ops/plan.h"

namespace nibble::cli {
namespace {

constexpr const char* kHead =
    "nibble-kernel-table 1\ndevice NVIDIA H200\nactivations bf16\nmodel openai/gpt-oss-120b\n";

std::string refusal(const std::string& text) {
  try {
    parse_kernel_table(text, "t");
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUsage);
    return e.what();
  }
  return "";
}

TEST(KernelTable, IsReadAsWritten) {
  const std::string text = std::string(kHead) +
                           "moe_up mxfp4 64 cuda_w4a16_decode\nattention - 1 cuda_bf16_tokens\n"
                           "out_proj bf16 2147483647 sm90_bf16_gemm\n";
  const KernelTable table = parse_kernel_table(text, "t");
  EXPECT_EQ(table.device, "NVIDIA H200");
  EXPECT_EQ(table.activations, "bf16");
  EXPECT_EQ(table.model, "openai/gpt-oss-120b");
  ASSERT_EQ(table.rows.size(), 3u);
  EXPECT_EQ(table.rows[0].op, ops::Op::kMoeUp);
  EXPECT_EQ(table.rows[0].max_tokens, 64);
  EXPECT_EQ(table.rows[1].weights, "");
  EXPECT_EQ(kernel_table_text(table), text);
}

TEST(KernelTable, SaysWhichLineIsBad) {
  EXPECT_THAT(refusal(""), testing::StartsWith("t:0: expected \"nibble-kernel-table 1\""));
  EXPECT_THAT(refusal("nibble-kernel-table 2\n"), testing::StartsWith("t:1: expected"));
  EXPECT_EQ(refusal("nibble-kernel-table 1\n"), "t:1: expected \"device ...\"");
  EXPECT_EQ(refusal("nibble-kernel-table 1\ndevice \n"), "t:2: expected \"device ...\"");
  const std::string head = kHead;
  EXPECT_EQ(refusal(head + "moe_up mxfp4 64\n"), "t:5: expected op, format, tokens and kernel");
  EXPECT_EQ(refusal(head + "\n"), "t:5: expected op, format, tokens and kernel");
  EXPECT_EQ(refusal(head + "moe_op mxfp4 64 x\n"), "t:5: there is no op moe_op");
  EXPECT_EQ(refusal(head + "moe_up fp5 64 x\n"), "t:5: there is no format fp5");
  for (const char* tokens : {"65", "64x", "-64", "99999999999999999999"})
    EXPECT_THAT(
        refusal(head + "moe_up mxfp4 " + tokens + " x\n"),
        testing::StartsWith("t:5: tokens are " + std::string(tokens) + ", none of 1, 2, 4"));
  EXPECT_EQ(refusal(head + "moe_up mxfp4 64 x\nmoe_up mxfp4 64 y\n"),
            "t:6: the same op, format and tokens again");
}

TEST(KernelTable, IsForOneDeviceAndOneFormatOfActivations) {
  const std::string file = testing::TempDir() + "kernels.txt";
  std::ofstream(file) << kHead << "moe_up mxfp4 64 cuda_w4a16_decode\n";
  ops::KernelOptions options;
  options.activations = ops::ActFormat::kBF16;
  use_kernel_table(file, "NVIDIA H200", options);
  EXPECT_EQ(options.tuned.size(), 1u);
  EXPECT_THROW(use_kernel_table(file, "NVIDIA GB10", options), Error);
  options.activations = ops::ActFormat::kFp8;
  EXPECT_THROW(use_kernel_table(file, "NVIDIA H200", options), Error);
  EXPECT_THROW(use_kernel_table(file + ".not", "NVIDIA H200", options), Error);
  options.activations = ops::ActFormat::kBF16;
  options.exact = true;
  EXPECT_THROW(use_kernel_table(file, "NVIDIA H200", options), Error);
}

// bench ops writes what doctor reads.
TEST(KernelTable, IsTimedHere) {
  const std::string model = std::string(NIBBLE_SOURCE_DIR) + "/models/nibble-tiny-gpt-oss";
  const std::string file = testing::TempDir() + "tuned.txt";
  CommandResult result = run_command({"bench", "ops", model, "--device", "cpu", "--tokens", "1,8",
                                      "--only", "out_proj", "--contexts", "1", "--seconds", "0",
                                      "--threads", "1", "--tune", file});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, testing::HasSubstr("out_proj"));
  result = run_command({"doctor", model, "--device", "cpu", "--kernel-table", file});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, testing::HasSubstr("of 6 ops and sizes of step"));  // 3 formats
  EXPECT_EQ(run_command({"bench", "ops", model, "--tokens", "3", "--tune", file}).status, 2);
  EXPECT_EQ(run_command({"doctor", model, "--device", "h200", "--kernel-table", file}).status, 1);
}

TEST(KernelTable, NamesTheKernelsThatThereAre) {
  const std::string model = NIBBLE_SOURCE_DIR "/models/nibble-tiny-gpt-oss";
  CommandResult result =
      run_command({"doctor", model, "--device", "cpu", "--kernel", "embed=avx3"});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, testing::HasSubstr("--kernel embed=avx3: no such kernel; embed has "));
  EXPECT_THAT(result.err, testing::HasSubstr(", ref\n"));
  result = run_command({"bench", "ops", model, "--tokens", "1", "--only", "embed/avx3"});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, testing::HasSubstr("no kernel that runs here has \"embed/avx3\""));
}

// What the table names goes first where it serves; the reason for the others says so.
TEST(KernelTable, ChangesThePlan) {
  const ops::MoeUpDesc desc{2880, 2880, 32, 4, Format::kMxfp4};
  ops::KernelOptions options;
  options.isa = cpu::Isa::kAvx512;
  const auto planned = [&] {
    return ops::SitePlan({ops::Op::kMoeUp, 0}, ops::moe_up_kernels(), desc, options).entries();
  };
  options.tuned = {{ops::Op::kMoeUp, "mxfp4", 8, "avx2_float"},
                   {ops::Op::kMoeUp, "bf16", 1, "avx2_float"},      // of another format
                   {ops::Op::kMoeUp, "mxfp4", 16, "neon_float"},    // does not run here
                   {ops::Op::kMoeDown, "mxfp4", 1, "avx2_float"}};  // of another op
  const std::vector<ops::PlanEntry> entries = planned();
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].kernel, "avx512_float");
  EXPECT_EQ(entries[1].kernel, "avx2_float");
  EXPECT_EQ(entries[1].min_tokens, 5);
  EXPECT_EQ(entries[1].max_tokens, 8);
  EXPECT_EQ(entries[1].refused.back(), (ops::Refusal{"avx512_float", ops::kSlowerHere}));
  EXPECT_EQ(entries[2].kernel, "avx512_float");
  options.tuned = {{ops::Op::kMoeUp, "mxfp4", 8, "avx3"}};
  EXPECT_THROW(planned(), Error);

  // Also a row that the table's order takes for other sizes of step.
  options.gpu = cuda::h200();
  options.activations = ops::ActFormat::kBF16;
  options.tuned = {};
  EXPECT_EQ(planned()[0].kernel, "cuda_w4a16_decode");
  options.tuned = {{ops::Op::kMoeUp, "mxfp4", 1, "sm90_w4a16_gemm"}};
  EXPECT_EQ(planned()[0].kernel, "sm90_w4a16_gemm");
  options.exact = true;
  EXPECT_EQ(planned()[0].kernel, "cuda_w4a16_decode");
}

}  // namespace
}  // namespace nibble::cli
