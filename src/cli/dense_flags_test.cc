#include "cli/dense_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/run_for_test.h"

namespace nibble::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr Format kBF16 = Format::kBF16, kMxfp8 = Format::kMxfp8, kMxfp4 = Format::kMxfp4;

TEST(DenseFlags, LayersOverrideTheFormatOfAll) {
  EXPECT_EQ(dense_formats({}), (DenseFormats{kBF16, kBF16, kBF16}));
  EXPECT_EQ(dense_formats({"mxfp8", {}}), (DenseFormats{kMxfp8, kMxfp8, kMxfp8, kMxfp8}));
  EXPECT_EQ(dense_formats({"bf16", {"o", "lm_head"}}), (DenseFormats{kBF16, kMxfp4, kMxfp4}));
  EXPECT_EQ(dense_formats({"mxfp8", {"qkv"}}), (DenseFormats{kMxfp4, kMxfp8, kMxfp8, kMxfp8}));
  EXPECT_THROW(dense_formats({"bf16", {"router"}}), Error);
  EXPECT_EQ(dense_text({kMxfp8, kMxfp8, kMxfp8, kMxfp8}), "mxfp8");
  EXPECT_EQ(dense_text({kMxfp4, kMxfp8, kBF16, kMxfp8}), "qkv mxfp4, o mxfp8, lm_head bf16");
  EXPECT_EQ(dense_text({kMxfp4, kMxfp8, kBF16, kMxfp4}),
            "qkv mxfp4, o mxfp8, mlp mxfp4, lm_head bf16");
}

// Of gpt-oss-20b's 3.708 GB a token, 637,009,920 elements of attention and 579,133,440 of the head
// are dense: 2 bytes each, 33/32 in MXFP8, 17/32 in MXFP4.
TEST(DenseFlags, FasterMeansFewerBytes) {
  ops::Ctx cx;
  cx.kernels.allow_ref = true;  // the twins read every format
  const char* model = "openai/gpt-oss-20b";
  EXPECT_THAT(faster_dense_advice(cx, model, {}),
              HasSubstr("--dense-format mxfp8 reads 2.53 GB a token instead of 3.71"));
  EXPECT_THAT(faster_dense_advice(cx, model, {kMxfp8, kMxfp8, kMxfp8}),
              HasSubstr("--dense-format mxfp4 reads 1.92 GB a token instead of 2.53"));
  EXPECT_EQ(faster_dense_advice(cx, model, {kMxfp4, kMxfp4, kMxfp4}), "");
}

// Attention of gpt-oss-120b in bytes: 36 layers of qkv [5120, 2880] and o [2880, 4096] with biases
// and sinks in bf16; the head is [201088, 2880].
TEST(DenseFlags, PlanCountsTheChosenFormats) {
  const auto result =
      run_command({"plan", "openai/gpt-oss-120b", "--device", "h200", "--dense-format", "mxfp8",
                   "--mxfp4-layers", "lm_head", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const json plan = json::parse(result.out);
  constexpr int64_t kMatrices = 36 * (5120 + 4096) * int64_t{2880};
  constexpr int64_t kVectors = 36 * 2 * (5120 + 2880 + 64);
  for (const json& part : plan["weights"]) {
    if (part["part"] == "attention") {
      EXPECT_EQ(part["bytes"], kMatrices / 32 * 33 + kVectors);
      EXPECT_EQ(part["formats"], "mxfp8");
    }
    if (part["part"] == "unembed") {
      EXPECT_EQ(part["bytes"], 201088 * int64_t{2880} / 32 * 17);
      EXPECT_EQ(part["formats"], "mxfp4");
    }
  }
  EXPECT_EQ(plan["dense"], "qkv mxfp8, o mxfp8, lm_head mxfp4");
}

TEST(KvFlag, Fp8HalvesTheCache) {
  const auto bytes = [](const char* dtype) {
    const auto result = run_command(
        {"plan", "openai/gpt-oss-120b", "--device", "h200", "--kv-cache-dtype", dtype, "--json"});
    return json::parse(result.out)["kv_bytes_per_token"].get<int64_t>();
  };
  EXPECT_EQ(bytes("auto"), 36'864);
  EXPECT_EQ(bytes("fp8"), 18'432);
  EXPECT_EQ(bytes("fp8_e4m3"), 18'432);
}

TEST(DenseFlags, BadOnesAreRefused) {
  EXPECT_EQ(run_command({"plan", "openai/gpt-oss-20b", "--dense-format", "fp4"}).status, 2);
  const auto layer = run_command({"plan", "openai/gpt-oss-20b", "--mxfp4-layers", "qkv,x"});
  EXPECT_EQ(layer.status, 2);
  EXPECT_THAT(layer.err, HasSubstr("--mxfp4-layers x: expected some of qkv, o, mlp, lm_head"));
}

TEST(DenseFlags, DoctorShowsFormatAndLayoutOfEachMatrix) {
  const auto result =
      run_command({"doctor", "openai/gpt-oss-20b", "--allow-ref", "--cpu-isa", "scalar", "--device",
                   "cpu", "--dense-format", "mxfp8", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const json doctor = json::parse(result.out);
  EXPECT_GT(doctor["kernels"].size(), 5u);
  for (const json& row : doctor["kernels"]) {
    if (row["op"] == "out_proj") {
      EXPECT_EQ(row["weights"], "mxfp8 in rows");
    }
    if (row["op"] == "moe_up") {
      EXPECT_EQ(row["weights"], "mxfp4 in rows");
    }
    if (row["op"] == "attention") {
      EXPECT_EQ(row["weights"], "");
    }
  }
}

}  // namespace
}  // namespace nibble::cli
