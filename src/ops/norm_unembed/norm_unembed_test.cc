#include "ops/norm_unembed/norm_unembed.h"

#include <gtest/gtest.h>

#include "ops/matmul_ref.h"
#include "ops/norm_ref.h"
#include "ops/test_problem.h"

namespace nibble::ops {
namespace {

struct Shape {
  int64_t hidden, vocab;
  Format format;
};
constexpr Shape kShapes[] = {{2880, 333, Format::kBF16},
                             {96, 199, Format::kBF16},
                             {40, 5, Format::kBF16},
                             {64, 67, Format::kMxfp4}};

void check(const Shape& shape, const std::vector<int32_t>& out_rows, DType act) {
  const int64_t tokens = 9, rows = static_cast<int64_t>(out_rows.size());
  Random random(2);
  const TestWeight w(random, shape.format, 1, shape.vocab, shape.hidden, /*has_bias=*/false);
  const std::vector<uint16_t> weight = random.bf16s(shape.hidden, 0.3f, 1);
  const Norm norm{weight.data(), 1e-5f};
  Floats x(random, tokens, shape.hidden, act), d(random, tokens, shape.hidden, act),
      h(tokens, shape.hidden), got(rows, shape.vocab);
  const Floats x0 = x;
  const NormUnembedDesc desc{shape.hidden, shape.vocab, shape.format};
  const Step step{.num_tokens = static_cast<int32_t>(tokens),
                  .num_out = static_cast<int32_t>(rows),
                  .out_rows = out_rows.data()};
  TestCtx test(act, scratch_bytes(desc, rows, 2));
  for (const NormUnembedKernel* row : kernels_here(norm_unembed_kernels(), desc)) {
    row->run(test.cx, got.tensor(), h.tensor(), x.tensor(), d.tensor(), norm, w.view, step);
    ASSERT_EQ(x.values, x0.values);
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<float> sum(shape.hidden), want(shape.hidden);
      ref::add(sum.data(), x.row(out_rows[r]), d.row(out_rows[r]), shape.hidden);
      ref::rms_norm(act, want.data(), sum.data(), norm, shape.hidden);
      for (int64_t n = 0; n < shape.vocab; ++n) {
        double abs;
        const double logit = ref::Row(w.view, 0, n).dot(want.data(), &abs);
        ASSERT_NEAR(got.at(r, n), logit,
                    (dot_error(shape.hidden) + norm_error(act, shape.hidden) + kEps) * abs)
            << row->name << " row " << r << " id " << n;
      }
    }
  }
}

TEST(NormUnembed, EveryKernelEqualsTheTwin) {
  for (const Shape& shape : kShapes)
    for (DType act : {DType::kF32, DType::kBF16}) {
      check(shape, {8}, act);
      check(shape, {0, 3, 4, 5, 8}, act);
      check(shape, {}, act);
    }
}

// h is what the kernel itself normed: a value near the middle of two int8 steps may go to either.
void check_int8(Format format) {
  const int64_t tokens = 5, vocab = 208, hidden = 160;
  Random random(3);
  TestWeight w(random, format, 1, vocab, hidden, /*has_bias=*/false);
  const std::vector<uint16_t> weight = random.bf16s(hidden, 0.3f, 1);
  Floats x(random, tokens, hidden), d(random, tokens, hidden), h(tokens, hidden),
      got(tokens, vocab);
  const NormUnembedDesc desc{hidden, vocab, format};
  const int32_t out_rows[] = {0, 1, 2, 3, 4};
  const Step step{.num_tokens = 5, .num_out = 5, .out_rows = out_rows};
  TestCtx test(DType::kF32, scratch_bytes(desc, tokens, 2));
  w.pack(Layout::kPanels16);
  const auto kernels = kernels_here(norm_unembed_kernels(), desc, ActFormat::kInt8);
  ASSERT_EQ(!kernels.empty(), runs_here(ActFormat::kInt8));
  for (const auto* row : kernels) {
    row->run(test.cx, got.tensor(), h.tensor(), x.tensor(), d.tensor(), {weight.data(), 1e-5f},
             w.view, step);
    const ActFormat rounded = rounded_by(row->name, ActFormat::kInt8);
    const Floats seen = as_input(h, rounded);
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<float> sum(hidden), want(hidden);
      ref::add(sum.data(), x.row(t), d.row(t), hidden);
      ref::rms_norm(DType::kF32, want.data(), sum.data(), {weight.data(), 1e-5f}, hidden);
      for (int64_t i = 0; i < hidden; ++i)
        ASSERT_NEAR(h.at(t, i), want[i], norm_error(DType::kF32, hidden) * std::fabs(want[i]));
      for (int64_t n = 0; n < vocab; ++n) {
        double abs;
        const double logit = ref::Row(w.view, 0, n).dot(seen.row(t), &abs);
        ASSERT_NEAR(got.at(t, n), logit, dot_error(hidden, rounded) * abs) << row->name << " " << t;
      }
    }
  }
}

TEST(NormUnembed, Int8KernelsEqualTheTwin) {
  for (const Format format : {Format::kMxfp4, Format::kNvfp4}) check_int8(format);
}

TEST(NormUnembed, Bytes) {
  EXPECT_EQ(bytes(NormUnembedDesc{2880, 201088, Format::kBF16}, 0), 1158266880 + 5760);
}

}  // namespace
}  // namespace nibble::ops
