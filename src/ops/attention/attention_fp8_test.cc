// Pages of FP8 E4M3: they mean the values that their codes stand for, times the layer's scales, so
// every kernel gives the bits that it gives over float32 pages of those values. Scales here are
// powers of two, by which nothing is rounded.
#include <gtest/gtest.h>

#include <numeric>

#include "ops/attention/attention.h"
#include "ops/kv_pages.h"
#include "ops/norm_qkv/norm_qkv.h"
#include "ops/rope/rope.h"
#include "ops/test_problem.h"

namespace nibble::ops {
namespace {

constexpr int64_t kHeads = 2, kDim = 64, kGroup = 4, kPageSize = 16, kPages = 8;
constexpr int32_t kLength = 101;

// Pages of one sequence, in reverse order.
struct TestPages {
  explicit TestPages(DType dtype)
      : k(kPages * kHeads * kPageSize * kDim * dtype_bytes(dtype)), v(k.size()), table(kPages) {
    std::iota(table.rbegin(), table.rend(), 0);
    const auto tensor = [&](std::vector<uint8_t>& bytes) {
      return make_tensor(bytes.data(), dtype, {kPages, kHeads, kPageSize, kDim});
    };
    view = {tensor(k), tensor(v), table.data(), kPages, kPageSize};
  }
  std::vector<uint8_t> k, v;
  std::vector<int32_t> table;
  KvLayer view;
};

TEST(Fp8Pages, AttentionReadsWhatTheCodesStandFor) {
  Random random(1);
  TestPages fp8(DType::kF8E4M3), f32(DType::kF32);
  fp8.view.k_scale = 0.5, fp8.view.v_scale = 4;
  for (const bool keys : {true, false}) {
    const Tensor &from = keys ? fp8.view.k : fp8.view.v, &to = keys ? f32.view.k : f32.view.v;
    for (int64_t i = 0; i < kPages * kHeads * kPageSize * kDim; ++i) {
      kv_put(from, i, random.normal(3));
      to.as<float>()[i] = (keys ? 0.5f : 4) * e4m3_to_float(from.as<uint8_t>()[i]);
    }
  }
  const std::vector<uint16_t> sinks = random.bf16s(kHeads * kGroup);
  for (const int32_t window : {0, 20}) {
    const AttentionDesc desc{kHeads * kGroup, kHeads, kDim, window};
    const AttentionParams params{.scale = .125f, .window = window, .sinks = sinks.data()};
    for (const int32_t tokens : {1, 7}) {
      std::vector<int32_t> positions(tokens);
      std::iota(positions.begin(), positions.end(), kLength - tokens);
      const Span span{0, tokens, kLength - tokens, 0};
      const Step step{
          .num_tokens = tokens, .num_spans = 1, .positions = positions.data(), .spans = &span};
      Floats q(random, tokens, kHeads * kGroup * kDim);
      TestCtx test(DType::kF32, scratch_bytes(desc, 2));
      std::vector<const AttentionKernel*> rows = kernels_here(attention_kernels(), desc);
      const AttentionKernel twin{"ref", nullptr, ref::attention};
      rows.push_back(&twin);
      for (const AttentionKernel* row : rows) {
        Floats got(tokens, kHeads * kGroup * kDim), want = got;
        row->run(test.cx, got.tensor(), q.tensor(), fp8.view, params, step);
        row->run(test.cx, want.tensor(), q.tensor(), f32.view, params, step);
        EXPECT_EQ(got.values, want.values) << row->name << " window " << window;
      }
    }
  }
}

// A code that is no number, of a key or a value, shows in the heads that see it and in no others.
TEST(Fp8Pages, DamagedCodesShow) {
  const AttentionDesc desc{kHeads * kGroup, kHeads, kDim, 0};
  for (const bool key : {true, false}) {
    Random random(3);
    TestPages fp8(DType::kF8E4M3);
    for (const Tensor& side : {fp8.view.k, fp8.view.v})
      for (int64_t i = 0; i < kPages * kHeads * kPageSize * kDim; ++i)
        kv_put(side, i, random.normal());
    (key ? fp8.k : fp8.v)[kv_index(fp8.view, 0, 37, 1) + 5] = 0xff;
    const Span span{0, 1, kLength - 1, 0};
    const int32_t position = kLength - 1;
    const Step step{.num_tokens = 1, .num_spans = 1, .positions = &position, .spans = &span};
    Floats q(random, 1, kHeads * kGroup * kDim);
    TestCtx test(DType::kF32, scratch_bytes(desc, 2));
    std::vector<const AttentionKernel*> rows = kernels_here(attention_kernels(), desc);
    ASSERT_FALSE(rows.empty());
    for (const AttentionKernel* row : rows) {
      Floats got(1, kHeads * kGroup * kDim);
      row->run(test.cx, got.tensor(), q.tensor(), fp8.view, {.scale = .125f}, step);
      for (int64_t n = 0; n < kHeads * kGroup * kDim; ++n) {
        const bool sees = n >= kGroup * kDim && (key || n % kDim == 5);
        EXPECT_EQ(std::isnan(got.at(0, n)), sees) << row->name << " column " << n;
      }
    }
  }
}

TEST(Fp8Pages, NormQkvRoundsOnceToTheNearestCode) {
  constexpr int32_t kTokens = 5;
  constexpr int64_t kHidden = 96, kRows = kHeads * (kGroup + 2) * kDim;
  Random random(2);
  const TestWeight w(random, Format::kBF16, 1, kRows, kHidden);
  const std::vector<uint16_t> weight = random.bf16s(kHidden, 30, 200);  // some values over 448
  const QkvNorms norms{{weight.data(), 1e-5f}};
  Floats x(random, kTokens, kHidden), d(random, kTokens, kHidden), cos_sin(kTokens, kDim);
  std::vector<int32_t> positions(kTokens);
  std::iota(positions.begin(), positions.end(), 14);
  const Span span{0, kTokens, 14, 0};
  const Step step{
      .num_tokens = kTokens, .num_spans = 1, .positions = positions.data(), .spans = &span};
  const NormQkvDesc desc{kHidden, kHeads * kGroup, kHeads, kDim, Format::kBF16};
  TestCtx test(DType::kF32, scratch_bytes(desc, kTokens, 2));
  std::fill(cos_sin.values.begin(), cos_sin.values.end(), .7f);
  std::vector<const NormQkvKernel*> rows = kernels_here(norm_qkv_kernels(), desc);
  const NormQkvKernel twin{"ref", nullptr, ref::norm_qkv};
  rows.push_back(&twin);
  for (const NormQkvKernel* row : rows) {
    TestPages fp8(DType::kF8E4M3), f32(DType::kF32);
    fp8.view.k_scale = 0.5, fp8.view.v_scale = 2;
    Floats q(kTokens, kHeads * kGroup * kDim), h(kTokens, kHidden), y(kTokens, kHidden);
    for (TestPages* pages : {&fp8, &f32})
      row->run(test.cx, {q.tensor(), h.tensor(), y.tensor()}, pages->view, x.tensor(), d.tensor(),
               norms, w.view, cos_sin.tensor(), step);
    int saturated = 0;
    for (int64_t i = 0; i < kPages * kHeads * kPageSize * kDim; ++i)
      for (const bool keys : {true, false}) {
        const float value = (keys ? f32.view.k : f32.view.v).as<float>()[i];
        const float scaled = value / (keys ? fp8.view.k_scale : fp8.view.v_scale);
        saturated += std::fabs(scaled) > 448;
        ASSERT_EQ((keys ? fp8.k : fp8.v)[i], e4m3_from_float(scaled)) << row->name;
      }
    EXPECT_GT(saturated, 0) << row->name;
  }
}

}  // namespace
}  // namespace nibble::ops
