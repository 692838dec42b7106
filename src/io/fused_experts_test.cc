#include "io/fused_experts.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TensorInfo tensor(const char* name, DType dtype, std::vector<int64_t> shape, int64_t bytes,
                  int64_t offset) {
  return {
      .name = name, .dtype = dtype, .shape = std::move(shape), .bytes = bytes, .offset = offset};
}

TEST(FusedExperts, BecomeATensorEach) {
  const auto all =
      split_fused_experts({tensor("a.mlp.experts.gate_up_proj", DType::kBF16, {2, 6, 4}, 96, 1000),
                           tensor("a.mlp.experts.down_proj", DType::kBF16, {2, 4, 3}, 48, 2000),
                           tensor("a.mlp.gate.weight", DType::kBF16, {2, 4}, 16, 3000)});
  ASSERT_EQ(all.size(), 7u);
  EXPECT_EQ(all[0].name, "a.mlp.experts.0.gate_proj.weight");
  EXPECT_EQ(all[1].name, "a.mlp.experts.0.up_proj.weight");
  EXPECT_EQ(all[3].name, "a.mlp.experts.1.up_proj.weight");
  EXPECT_EQ(all[3].shape, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(all[3].bytes, 24);
  EXPECT_EQ(all[3].offset, 1000 + 3 * 24);
  EXPECT_EQ(all[5].name, "a.mlp.experts.1.down_proj.weight");
  EXPECT_EQ(all[5].shape, (std::vector<int64_t>{4, 3}));
  EXPECT_EQ(all[5].offset, 2024);
  EXPECT_EQ(all[6].name, "a.mlp.gate.weight");
}

// gpt-oss's, transposed; quantized ones; one without its other half.
TEST(FusedExperts, OthersStayAsTheyAre) {
  const std::vector<TensorInfo> tensors = {
      tensor("a.experts.gate_up_proj", DType::kBF16, {2, 4, 6}, 96, 0),
      tensor("a.experts.down_proj", DType::kBF16, {2, 3, 4}, 48, 96),
      tensor("b.experts.gate_up_proj", DType::kU8, {2, 6, 4}, 48, 144),
      tensor("b.experts.down_proj", DType::kU8, {2, 4, 3}, 24, 192),
      tensor("c.experts.gate_up_proj", DType::kBF16, {2, 6, 4}, 96, 216)};
  const auto all = split_fused_experts(tensors);
  ASSERT_EQ(all.size(), tensors.size());
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].name, tensors[i].name);
}

}  // namespace
}  // namespace nibble
