#include "cli/byte_plan.h"

#include <gtest/gtest.h>

namespace nibble::cli {
namespace {

// gpt-oss-120b by hand, from its published shapes: 36 layers of hidden size 2880, 64 query and 8 KV
// heads of 64, 128 experts of width 2880 in MXFP4 (17 bytes per 32 elements) with BF16 biases,
// vocabulary 201088.
ModelInfo gpt_oss_120b() {
  constexpr int64_t kLayers = 36, kHidden = 2880, kVocab = 201088, kExperts = 128;
  constexpr int64_t kExpert = 3 * kHidden * kHidden / 32 * 17 + 3 * kHidden * 2;
  constexpr int64_t kQkv = (64 + 8 + 8) * 64;
  ModelInfo info;
  info.num_layers = kLayers;
  const std::vector<int32_t> half(18);
  info.groups = {{.window = kNoWindow, .layers = half, .num_kv_heads = 8, .head_dim = 64},
                 {.window = 128, .layers = half, .num_kv_heads = 8, .head_dim = 64}};
  info.parts = {
      {.name = "embed", .bytes = 2 * kVocab * kHidden, .chosen = 1, .choices = kVocab},
      {.name = "attention",
       .bytes = kLayers * 2 * (kQkv * (kHidden + 1) + kHidden * (64 * 64 + 1) + 64)},
      {.name = "router", .bytes = kLayers * 2 * kExperts * (kHidden + 1)},
      {.name = "norms", .bytes = 2 * kHidden * (2 * kLayers + 1)},
      {.name = "experts", .bytes = kLayers * kExperts * kExpert, .chosen = 4, .choices = kExperts},
      {.name = "unembed", .bytes = 2 * kVocab * kHidden},
  };
  return info;
}

TEST(BytePlan, OneTokenReadsTheChosenExpertsAndOneEmbeddingRow) {
  // 4 of 128 is a power of two; 1 of 201088 rows is not: less than a byte of rounding in a double.
  EXPECT_NEAR(weight_bytes_read(gpt_oss_120b(), 1), 5'002'907'904.0, 1.0);
}

TEST(BytePlan, ManyTokensTouchTheExpertsThatEvenRoutingExpects) {
  // GB read by 8, 32 and 128 streams, computed independently from d(B) = E (1 - (1 - 4/E)^B), to
  // the two decimals given.
  const ModelInfo info = gpt_oss_120b();
  EXPECT_NEAR(weight_bytes_read(info, 8) / 1e9, 16.78, 0.005);
  EXPECT_NEAR(weight_bytes_read(info, 32) / 1e9, 42.01, 0.005);
  EXPECT_NEAR(weight_bytes_read(info, 128) / 1e9, 63.04, 0.005);
}

TEST(BytePlan, KvCache) {
  const ModelInfo info = gpt_oss_120b();
  EXPECT_EQ(kv_bytes_per_position(info.groups[0], DType::kBF16), 2048);
  EXPECT_EQ(kv_bytes_per_token(info, DType::kBF16), 36'864);
  EXPECT_EQ(kv_window_bytes(info, DType::kBF16), 4'718'592);
  EXPECT_EQ(kv_bytes_read(info, DType::kBF16, 100), 100 * 36 * 2048);
  EXPECT_EQ(kv_bytes_read(info, DType::kBF16, 2048), 2048 * 36'864 + 4'718'592);
  EXPECT_EQ(kv_bytes_read(info, DType::kF32, 2048), 2 * (2048 * 36'864 + 4'718'592));
}

// A group of a draft's heads beside the model's.
TEST(BytePlan, GroupsHaveHeadsOfTheirOwn) {
  ModelInfo info = gpt_oss_120b();
  info.groups.push_back({.layers = {36}, .num_kv_heads = 2, .head_dim = 256});
  EXPECT_EQ(kv_bytes_per_position(info.groups[2], DType::kBF16), 2048);
  info.groups[2].num_kv_heads = 1;
  EXPECT_EQ(kv_bytes_per_token(info, DType::kBF16), 36'864 + 1024);
  EXPECT_EQ(kv_bytes_read(info, DType::kBF16, 2048), 2048 * (36'864 + 1024) + 4'718'592);
}

// Qwen3-Next-80B: 36 of its 48 layers keep 32 matrices of 128 x 128 and 3 inputs of 8192 channels.
TEST(BytePlan, States) {
  ModelInfo info;
  info.num_layers = 48;
  info.groups = {{.layers = std::vector<int32_t>(12), .num_kv_heads = 2, .head_dim = 256},
                 {.layers = std::vector<int32_t>(36), .recurrent = {32, 128, 128, 8192, 4}}};
  EXPECT_EQ(state_bytes(info), 79'036'416);
  EXPECT_EQ(kv_bytes_per_token(info, DType::kBF16), 24'576);
  EXPECT_EQ(kv_bytes_read(info, DType::kBF16, 1000), 24'576'000);
  EXPECT_EQ(kv_window_bytes(info, DType::kBF16), 0);
  EXPECT_EQ(state_bytes(gpt_oss_120b()), 0);
}

TEST(BytePlan, Devices) {
  EXPECT_TRUE(find_plan_device("gb10")->shared_with_gpu);
  EXPECT_EQ(find_plan_device("h200")->read_bandwidth, 4550e9);
  EXPECT_FALSE(find_plan_device("cpu"));
}

}  // namespace
}  // namespace nibble::cli
