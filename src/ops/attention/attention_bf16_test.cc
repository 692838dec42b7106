// The rows that round queries and softmax weights to bf16.
#include <gtest/gtest.h>

#include <limits>

#include "ops/attention/attention_test_problem.h"

namespace nibble::ops {
namespace {

std::vector<const AttentionKernel*> kernels_for_int8(const AttentionDesc& desc) {
  KernelOptions options;
  options.activations = ActFormat::kInt8;
  return kernels_here(attention_kernels(), desc, options);
}

// Queries are bf16 already. A weight is off by its rounding to bf16, by twice what its score is off
// (products of bf16 are exact, D roundings of their sum, each up to a whole unit and with tiny
// products lost) and by the exponential's 2^-13; sums over keys as in float32.
void check(const AttentionCase& c) {
  const auto bound = [&](float scale, int32_t pos, double, double abs) {
    const double score_error = (c.desc.head_dim + 4) * 2 * kEps * 4 * c.desc.head_dim * scale;
    return (0x1p-8 + 0x1p-12 + 2 * score_error + (2 * pos + 24) * kEps) * abs;
  };
  check_attention(c, Random(13), DType::kBF16, DType::kF32, kernels_for_int8(c.desc), bound);
}

TEST(Bf16Attention, EqualsTheTwinAndItselfAlone) {
  const AttentionDesc full{64, 8, 64, 0}, window{64, 8, 64, 128};
  int i = 0;
  for (const AttentionCase& c : std::vector<AttentionCase>{
           {window, DType::kBF16, 16, true, {{1, 126}, {1, 127}, {1, 128}, {1, 129}, {1, 0}}},
           {full, DType::kBF16, 16, true, {{1, 63}, {1, 64}, {1, 65}, {1, 300}}},
           {full, DType::kBF16, 16, true, {{37, 0}, {9, 61}}},
           {window, DType::kF8E4M3, 16, true, {{40, 110}, {3, 0}}},
           {full, DType::kF8E4M3, 16, true, {{1, 300}, {20, 64}}},
           {{6, 2, 32, 5}, DType::kBF16, 16, true, {{48, 0}, {1, 4}, {1, 5}}},
           {{3, 3, 96, 7}, DType::kBF16, 5, false, {{40, 0}, {2, 33}}},
           {{40, 1, 64, 33}, DType::kBF16, 64, true, {{3, 30}, {66, 0}}}}) {
    SCOPED_TRACE(i++);
    check(c);
  }
}

// What a token does not see does not reach it, were it NaN; what it sees does.
TEST(Bf16Attention, UnseenValuesDoNotMatter) {
  Random random(6);
  const AttentionDesc desc{8, 1, 64, 24};
  const int32_t tokens = 9, context = 40, positions = context + tokens;
  std::vector<uint16_t> k = random.bf16s(positions * 64), v = random.bf16s(positions * 64);
  const int32_t table[] = {0};
  const auto tensor = [&](std::vector<uint16_t>& x) {
    return make_tensor(x.data(), DType::kBF16, {1, 1, positions, 64});
  };
  const KvLayer kv{tensor(k), tensor(v), table, 1, positions};
  const TestStep step({{tokens, context}});
  Floats q(random, tokens, 8 * 64), want(tokens, 8 * 64), got(tokens, 8 * 64);
  TestCtx test(DType::kF32, scratch_bytes(desc, 2));
  const AttentionParams params{.scale = 0.125f, .window = 24, .sinks = nullptr};
  const uint16_t nan = 0x7fc0, infinity = 0x7f80;
  for (const AttentionKernel* row : kernels_for_int8(desc)) {
    const std::vector<uint16_t> clean = v;
    row->run(test.cx, want.tensor(), q.tensor(), kv, params, step.view);
    std::fill(v.begin() + (positions - 3) * 64, v.end(), nan);            // tokens 6, 7 and 8
    std::fill(v.begin(), v.begin() + (context - 23 + 2) * 64, infinity);  // left behind by token 2
    row->run(test.cx, got.tensor(), q.tensor(), kv, params, step.view);
    v = clean;
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t i = 0; i < 8 * 64; ++i)
        if (t >= 2 && t < 6)
          EXPECT_EQ(got.at(t, i), want.at(t, i)) << row->name << " token " << t;
        else
          EXPECT_FALSE(std::isfinite(got.at(t, i))) << row->name << " token " << t;
    k[41 * 64] = nan;
    row->run(test.cx, got.tensor(), q.tensor(), kv, params, step.view);
    for (int64_t t = 0; t < tokens; ++t)
      EXPECT_EQ(std::isnan(got.at(t, 0)), t >= 1) << row->name << " token " << t;
    k[41 * 64] = 0;
  }
}

}  // namespace
}  // namespace nibble::ops
