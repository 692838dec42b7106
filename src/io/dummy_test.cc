#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "formats/bf16.h"
#include "formats/mxfp4.h"
#include "io/checkpoint.h"

namespace nibble {
namespace {

std::vector<std::byte> read_range(const Checkpoint& checkpoint, const std::string& name,
                                  int64_t begin, int64_t bytes) {
  std::vector<std::byte> data(static_cast<size_t>(bytes));
  const ReadJob job{checkpoint.find(name), begin, bytes, data.data()};
  checkpoint.read({&job, 1});
  return data;
}

std::vector<std::byte> read_tensor(const Checkpoint& checkpoint, const std::string& name) {
  return read_range(checkpoint, name, 0, checkpoint.find(name)->bytes);
}

std::vector<float> read_bf16(const Checkpoint& checkpoint, const std::string& name) {
  const std::vector<std::byte> data = read_tensor(checkpoint, name);
  std::vector<float> values(data.size() / 2);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = bf16_to_float(static_cast<uint16_t>(static_cast<unsigned>(data[2 * i]) |
                                                    static_cast<unsigned>(data[2 * i + 1]) << 8));
  return values;
}

double root_mean_square(const std::vector<float>& values) {
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum / static_cast<double>(values.size()));
}

std::vector<WeightSpec> specs() {
  return {{.name = "norm", .shape = {100}, .fill = Fill::kOne},
          {.name = "bias", .shape = {100}, .fill = Fill::kZero},
          {.name = "embed", .shape = {1000, 64}, .fill = Fill::kNormal},
          {.name = "q", .shape = {512, 360}},
          {.name = "q32", .shape = {512, 360}, .format = Format::kF32},
          {.name = "up", .shape = {4, 64, 96}, .format = Format::kMxfp4},
          {.name = "big", .shape = {3000, 2880}}};
}

TEST(DummyCheckpoint, HasExactlyTheWantedWeights) {
  const auto checkpoint = dummy_checkpoint(specs(), 1);
  const std::vector<WeightInfo> matched = match_weights(*checkpoint, specs());
  EXPECT_EQ(matched.size(), specs().size());
  EXPECT_EQ(list_weights(*checkpoint).size(), specs().size());
}

TEST(DummyCheckpoint, FillsConstants) {
  const auto checkpoint = dummy_checkpoint(specs(), 1);
  for (const float v : read_bf16(*checkpoint, "norm")) EXPECT_EQ(v, 1);
  for (const float v : read_bf16(*checkpoint, "bias")) EXPECT_EQ(v, 0);
}

// The standard error of a root mean square of n normal values is 1 / sqrt(2n), relative: 0.3% for
// 64,000. Five of them is what may not be exceeded; bf16 rounding averages out.
TEST(DummyCheckpoint, HasTheStatedDeviations) {
  const auto checkpoint = dummy_checkpoint(specs(), 1);
  EXPECT_NEAR(root_mean_square(read_bf16(*checkpoint, "embed")), 1, .014);
  EXPECT_NEAR(root_mean_square(read_bf16(*checkpoint, "q")) * std::sqrt(360), 1, .009);
  double mean = 0;
  for (const float v : read_bf16(*checkpoint, "embed")) mean += static_cast<double>(v) / 64000;
  EXPECT_NEAR(mean, 0, 5 / std::sqrt(64000));
}

TEST(DummyCheckpoint, Mxfp4HasTheStatedRootMeanSquare) {
  const auto checkpoint = dummy_checkpoint(specs(), 3);
  const std::vector<std::byte> codes = read_tensor(*checkpoint, "up_blocks");
  const std::vector<std::byte> scales = read_tensor(*checkpoint, "up_scales");
  std::vector<float> values(scales.size() * kMxfp4BlockElems);
  for (size_t b = 0; b < scales.size(); ++b) {
    Mxfp4Codes block;
    std::memcpy(&block, &codes[b * sizeof block], sizeof block);
    mxfp4_decode(block, static_cast<uint8_t>(scales[b]), &values[b * kMxfp4BlockElems]);
  }
  // 768 scales, two of them a factor 4 apart in square: a relative error of about 0.7 / sqrt(768)
  // / 2 = 1.3% of the root; 5 times that.
  EXPECT_NEAR(root_mean_square(values) * std::sqrt(96), 1, .065);
  const auto [low, high] = std::minmax_element(scales.begin(), scales.end());
  EXPECT_EQ(static_cast<int>(*high) - static_cast<int>(*low), 1);
}

TEST(DummyCheckpoint, SameSeedSameBytesHoweverRead) {
  const auto a = dummy_checkpoint(specs(), 42), b = dummy_checkpoint(specs(), 42);
  const auto other = dummy_checkpoint(specs(), 43);
  for (const TensorInfo& t : a->tensors()) {
    const std::vector<std::byte> whole = read_tensor(*a, t.name);
    EXPECT_EQ(whole, read_tensor(*b, t.name)) << t.name;
    // In ranges that begin and end in the middle of a word.
    std::vector<std::byte> pieces;
    for (int64_t at = 0; at < t.bytes;) {
      const int64_t n = std::min<int64_t>(t.bytes - at, 1 + at % 7 + at / 3);
      const std::vector<std::byte> piece = read_range(*b, t.name, at, n);
      pieces.insert(pieces.end(), piece.begin(), piece.end());
      at += n;
    }
    EXPECT_EQ(whole, pieces) << t.name;
    const bool constant = t.name == "norm" || t.name == "bias";
    EXPECT_EQ(whole == read_tensor(*other, t.name), constant) << t.name;
  }
}

// Rows must not repeat, nor two tensors of the same shape be alike: 64 values agree by chance with
// a probability of about (1/200)^64.
TEST(DummyCheckpoint, RowsAndTensorsDiffer) {
  const auto checkpoint =
      dummy_checkpoint({{.name = "a", .shape = {2, 64}}, {.name = "b", .shape = {2, 64}}}, 1);
  const std::vector<float> a = read_bf16(*checkpoint, "a"), b = read_bf16(*checkpoint, "b");
  EXPECT_NE(std::vector(a.begin(), a.begin() + 64), std::vector(a.begin() + 64, a.end()));
  EXPECT_NE(a, b);
}

// Top-4 of 32 experts for 4,000 random normed inputs: each expert should get 500. Rows of different
// lengths (a deviation of 1 / sqrt(2H) = 4% at H = 288) make some experts more likely; a share
// within a factor 1.5 still means that every expert works.
TEST(DummyCheckpoint, RoutingIsBalanced) {
  constexpr size_t kHidden = 288, kExperts = 32, kTokens = 4000, kChosen = 4;
  const auto checkpoint = dummy_checkpoint(
      {{.name = "router", .shape = {kExperts, kHidden}, .fill = Fill::kRouter}}, 5);
  const std::vector<float> router = read_bf16(*checkpoint, "router");
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<int> count(kExperts);
  double square = 0;
  for (size_t t = 0; t < kTokens; ++t) {
    std::vector<float> x(kHidden);
    for (float& v : x) v = normal(random);
    std::vector<std::pair<float, size_t>> logits(kExperts);
    for (size_t e = 0; e < kExperts; ++e) {
      float sum = 0;
      for (size_t i = 0; i < kHidden; ++i) sum += x[i] * router[e * kHidden + i];
      logits[e] = {sum, e};
      square += static_cast<double>(sum) * static_cast<double>(sum);
    }
    std::partial_sort(logits.begin(), logits.begin() + kChosen, logits.end(), std::greater<>());
    for (size_t k = 0; k < kChosen; ++k) ++count[logits[k].second];
  }
  const int expected = kTokens * kChosen / kExperts;
  for (size_t e = 0; e < kExperts; ++e) {
    EXPECT_GT(count[e], expected * 2 / 3) << "expert " << e;
    EXPECT_LT(count[e], expected * 3 / 2) << "expert " << e;
  }
  // Logits have a deviation of 2; 32 row lengths of 4% each, so 0.8% of the mean square: 5 times.
  EXPECT_NEAR(square / (kTokens * kExperts), 4, .16);
}

}  // namespace
}  // namespace nibble
