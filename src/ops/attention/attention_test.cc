#include "ops/attention/attention.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "ops/attention/attention_test_problem.h"

namespace nibble::ops {
namespace {

std::vector<AttentionCase> cases() {
  const AttentionDesc gpt_oss_full{64, 8, 64, 0}, gpt_oss_window{64, 8, 64, 128};
  return {
      // Decode and prefill around the edges of window, page and key block.
      {gpt_oss_window, DType::kBF16, 16, true, {{1, 126}, {1, 127}, {1, 128}, {1, 129}, {1, 0}}},
      {gpt_oss_full, DType::kBF16, 16, true, {{1, 31}, {1, 32}, {1, 33}, {1, 300}}},
      {gpt_oss_window, DType::kF32, 16, true, {{40, 110}, {3, 0}}},
      {gpt_oss_full, DType::kF32, 16, true, {{37, 0}, {9, 61}}},
      // Odd heads, dims, windows and pages; no sinks.
      {{6, 2, 16, 5}, DType::kF32, 16, true, {{48, 0}, {1, 4}, {1, 5}}},
      {{8, 1, 32, 0}, DType::kF32, 8, false, {{70, 3}}},
      {{3, 3, 24, 7}, DType::kBF16, 5, false, {{40, 0}, {2, 33}}},
      {{4, 2, 8, 1}, DType::kF32, 1, true, {{5, 0}, {1, 64}}},
      {{40, 1, 80, 33}, DType::kF32, 64, true, {{3, 30}, {66, 0}}},
  };
}

// Scores are off by (D + 2) roundings of sum |q k|, at most |q||k| scale; a weight by twice that
// (its own score and the sum's), the exponential (4 roundings) and the sums over the keys.
void check(const AttentionCase& c, DType act) {
  const auto bound = [&](float scale, int32_t pos, double want, double abs) {
    // |q|^2 and |k|^2 are sums of D squares of normal numbers: below 4 D but for 1 in 10^9.
    const double score_error = (c.desc.head_dim + 2) * kEps * 4 * c.desc.head_dim * scale;
    return (2 * score_error + (pos + 24) * kEps) * abs + store_error(act, want);
  };
  check_attention(c, Random(11), act, act, kernels_here(attention_kernels(), c.desc), bound);
}

TEST(Attention, EveryKernelEqualsTheTwinAndItselfAlone) {
  int i = 0;
  for (const AttentionCase& c : cases())
    for (DType act : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(i++);
      check(c, act);
    }
}

// Of 131,072, by itself and at the end of a chunk.
TEST(Attention, LastPositionOfTheLongestContext) {
  const std::vector<int32_t> needles = {0, 1, 65535, 131065, 131071};
  for (const int32_t tokens : {1, 5})
    check({{8, 1, 64, 0}, DType::kBF16, 16, true, {{tokens, 131072 - tokens}}, needles},
          DType::kF32);
}

TEST(Attention, PagesBehindTheWindowAreNotTouched) {
  Random random(5);
  const AttentionDesc desc{8, 1, 64, 128};
  const TestStep step({{2, 500}});
  Pages pages(random, desc, DType::kBF16, 16, step.lengths);
  pages.release(0, 500 - 127);  // kv_index() aborts on a page that is not there
  Floats q(random, 2, 512), got(2, 512);
  TestCtx test(DType::kF32, scratch_bytes(desc, 2));
  const AttentionParams params{.scale = 0.125f, .window = 128, .sinks = nullptr};
  for (const AttentionKernel* row : kernels_here(attention_kernels(), desc)) {
    row->run(test.cx, got.tensor(), q.tensor(), pages.layer(), params, step.view);
    for (float x : got.values) ASSERT_TRUE(std::isfinite(x));
  }
}

// What a token does not see does not reach it, were it NaN: not the values of later tokens of the
// same chunk, and not those that its window has left behind.
TEST(Attention, UnseenValuesDoNotMatter) {
  for (const int64_t group : {1, 2, 3, 8}) {
    Random random(6);
    const AttentionDesc desc{group, 1, 64, 24};
    const int32_t tokens = 9, context = 40, positions = context + tokens;
    std::vector<float> k = random.normals(positions * 64), v = random.normals(positions * 64);
    const int32_t table[] = {0};
    const auto tensor = [&](std::vector<float>& x) {
      return make_tensor(x.data(), DType::kF32, {1, 1, positions, 64});
    };
    const KvLayer kv{tensor(k), tensor(v), table, 1, positions};
    const TestStep step({{tokens, context}});
    Floats q(random, tokens, group * 64), want(tokens, group * 64), got(tokens, group * 64);
    TestCtx test(DType::kF32, scratch_bytes(desc, 2));
    const AttentionParams params{.scale = 0.125f, .window = 24, .sinks = nullptr};
    for (const AttentionKernel* row : kernels_here(attention_kernels(), desc)) {
      const std::vector<float> clean = v;
      row->run(test.cx, want.tensor(), q.tensor(), kv, params, step.view);
      const float nan = std::numeric_limits<float>::quiet_NaN();
      std::fill(v.begin() + (positions - 3) * 64, v.end(), nan);       // tokens 6, 7 and 8
      std::fill(v.begin(), v.begin() + (context - 23 + 2) * 64, nan);  // left behind by token 2
      row->run(test.cx, got.tensor(), q.tensor(), kv, params, step.view);
      v = clean;
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t i = 0; i < group * 64; ++i)
          if (t >= 2 && t < 6)
            EXPECT_EQ(got.at(t, i), want.at(t, i)) << row->name << " token " << t;
          else
            EXPECT_TRUE(std::isnan(got.at(t, i))) << row->name << " token " << t;
    }
  }
}

TEST(Attention, SinkTakesItsShare) {
  // Scores 1, 2, 0.5 and a sink of 1.5 give weights .167405097, .455054234, .101536324.
  const AttentionDesc desc{1, 1, 4, 0};
  std::vector<float> k = {1, 0, 0, 0, 2, 0, 0, 0, .5f, 0, 0, 0},
                     v = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0};
  const int32_t table[] = {0}, positions[] = {2};
  const KvLayer kv{make_tensor(k.data(), DType::kF32, {1, 1, 3, 4}),
                   make_tensor(v.data(), DType::kF32, {1, 1, 3, 4}), table, 1, 3};
  const Span span{0, 1, 2, 0};
  const Step step{.num_tokens = 1, .num_spans = 1, .positions = positions, .spans = &span};
  const uint16_t sink = bf16_from_float(1.5f);
  Floats q(1, 4), got(1, 4);
  q.values = {1, 0, 0, 0};
  TestCtx test(DType::kF32, scratch_bytes(desc, 2));
  KernelOptions with_twin;
  with_twin.allow_ref = true;
  for (const AttentionKernel& row : attention_kernels()) {
    if (row.refuse(desc, with_twin) != nullptr) continue;
    row.run(test.cx, got.tensor(), q.tensor(), kv, {.scale = 1, .window = 0, .sinks = &sink}, step);
    EXPECT_NEAR(got.at(0, 0), .167405097, 1e-7) << row.name;
    EXPECT_NEAR(got.at(0, 1), .455054234, 1e-7) << row.name;
    EXPECT_NEAR(got.at(0, 2), .101536324, 1e-7) << row.name;
  }
}

// A damaged key makes every token that sees it NaN, as the twin does, and no token before it.
TEST(Attention, DamagedKeysShow) {
  const AttentionDesc desc{1, 1, 4, 0};
  std::vector<float> k(3 * 4, 1.f), v(3 * 4, 2.f);
  k[5] = std::numeric_limits<float>::quiet_NaN();  // position 1
  const int32_t table[] = {0}, positions[] = {0, 1, 2};
  const KvLayer kv{make_tensor(k.data(), DType::kF32, {1, 1, 3, 4}),
                   make_tensor(v.data(), DType::kF32, {1, 1, 3, 4}), table, 1, 3};
  const Span span{0, 3, 0, 0};
  const Step step{.num_tokens = 3, .num_spans = 1, .positions = positions, .spans = &span};
  Floats q(3, 4), got(3, 4);
  std::fill(q.values.begin(), q.values.end(), 1.f);
  TestCtx test(DType::kF32, scratch_bytes(desc, 2));
  KernelOptions with_twin;
  with_twin.allow_ref = true;
  for (const AttentionKernel& row : attention_kernels()) {
    if (row.refuse(desc, with_twin) != nullptr) continue;
    row.run(test.cx, got.tensor(), q.tensor(), kv, {.scale = 1}, step);
    for (int64_t n = 0; n < 4; ++n) {
      EXPECT_EQ(got.at(0, n), 2) << row.name;
      EXPECT_TRUE(std::isnan(got.at(1, n)) && std::isnan(got.at(2, n))) << row.name;
    }
  }
}

TEST(Attention, SinksOfAnySize) {
  const AttentionDesc desc{1, 1, 4, 0};
  std::vector<float> k(40 * 4, 0.f), v(40 * 4, 1.f);
  k[0] = 30;  // scores 30, then zeros in two key blocks
  std::vector<int32_t> table(5), positions = {39};
  std::iota(table.begin(), table.end(), 0);
  const KvLayer kv{make_tensor(k.data(), DType::kF32, {5, 1, 8, 4}),
                   make_tensor(v.data(), DType::kF32, {5, 1, 8, 4}), table.data(), 5, 8};
  const Span span{0, 1, 39, 0};
  const Step step{.num_tokens = 1, .num_spans = 1, .positions = positions.data(), .spans = &span};
  Floats q(1, 4), got(1, 4);
  q.values = {1, 0, 0, 0};
  TestCtx test(DType::kF32, scratch_bytes(desc, 2));
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float value : {-infinity, -3e38f, -200.f, 0.f, 30.f, 60.f, 200.f}) {
    const uint16_t sink = bf16_from_float(value);
    const double keys = 1 + 39 * std::exp(-30.0), by_sink = std::exp(double{value} - 30);
    for (const AttentionKernel* row : kernels_here(attention_kernels(), desc)) {
      row->run(test.cx, got.tensor(), q.tensor(), kv, {.scale = 1, .window = 0, .sinks = &sink},
               step);
      // 40 additions and the exponentials; below exp(-87.3) they stay there.
      EXPECT_NEAR(got.at(0, 0), keys / (keys + by_sink),
                  64 * kEps * keys / (keys + by_sink) + 1e-36)
          << row->name << " sink " << value;
    }
  }
}

TEST(Attention, BytesAndFlops) {
  // gpt-oss-20b decoding at 4,096: 12 full layers of 2 x 512 bf16 per position make 103.8 MB with
  // the 12 window layers' 128 positions.
  const AttentionDesc full{64, 8, 64, 0}, window{64, 8, 64, 128};
  const int64_t io = 8 * 4096;
  EXPECT_EQ(12 * (bytes(full, 1, 4095, 2) - io + bytes(window, 1, 4095, 2) - io), 103809024);
  EXPECT_EQ(flops(window, 2, 127), 4 * (128 + 128) * 4096);
}

}  // namespace
}  // namespace nibble::ops
