#include "ops/norm_linear/norm_linear.h"

#include <gtest/gtest.h>

#include <map>

#include "ops/matmul_ref.h"
#include "ops/norm_ref.h"
#include "ops/test_problem.h"

namespace nibble::ops {
namespace {

struct Shape {
  int64_t hidden, width;
  Format format;
};
constexpr Shape kShapes[] = {{1024, 200, Format::kBF16}, {96, 64, Format::kMxfp4},
                             {72, 21, Format::kBF16},    {80, 21, Format::kNvfp4},
                             {96, 64, Format::kNvfp4},   {160, 96, Format::kFp8Row},
                             {256, 11, Format::kInt4G32}};

// Weights around zero with an offset of one, too. p is compared with the product of h as the kernel
// left it, h with the twin's.
using Ran = std::map<ActFormat, size_t>;
void check(Ran& ran, const Shape& shape, int64_t tokens, DType act, float offset,
           ActFormat format = ActFormat::kFloat) {
  Random random(static_cast<uint32_t>(tokens));
  TestWeight w(random, shape.format, 1, shape.width, shape.hidden, /*has_bias=*/false);
  const std::vector<uint16_t> weight = random.bf16s(shape.hidden, 0.3f, 1 - offset);
  const Norm norm{weight.data(), 1e-5f, offset};
  Floats x(random, tokens, shape.hidden, act), d(random, tokens, shape.hidden, act);
  Floats want_y(tokens, shape.hidden), want_h(tokens, shape.hidden);
  ref::add(want_y.values.data(), x.row(0), d.row(0), tokens * shape.hidden);
  for (int64_t t = 0; t < tokens; ++t)
    ref::rms_norm(act, want_h.values.data() + t * shape.hidden, want_y.row(t), norm, shape.hidden);
  const NormLinearDesc desc{.hidden = shape.hidden, .width = shape.width, .format = shape.format};
  TestCtx test(act, scratch_bytes(desc, tokens, 2));
  test.cx.kernels.activations = format;
  const auto kernels = kernels_here(norm_linear_kernels(), desc, format);
  ran[format] += kernels.size();
  for (const NormLinearKernel* row : kernels) {
    if (w.view.layout != row->layout) w.pack(row->layout);
    const ActFormat rounded = rounded_by(row->name, format);
    Floats p(tokens, shape.width), h(tokens, shape.hidden), y(tokens, shape.hidden);
    row->run(test.cx, {p.tensor(), h.tensor(), y.tensor()}, x.tensor(), d.tensor(), norm, w.view);
    ASSERT_EQ(y.values, want_y.values) << row->name;
    for (size_t i = 0; i < h.values.size(); ++i)
      ASSERT_NEAR(h.values[i], want_h.values[i],
                  norm_error(act, shape.hidden) * std::fabs(want_h.values[i]));
    const Floats seen = as_input(h, rounded);
    for (int64_t n = 0; n < shape.width; ++n)
      for (int64_t t = 0; t < tokens; ++t) {
        double abs;
        const double want = ref::Row(w.view, 0, n).dot(seen.row(t), &abs);
        ASSERT_NEAR(p.at(t, n), want, dot_error(shape.hidden, rounded) * abs + kEps)
            << row->name << " token " << t << " column " << n;
      }
    for (int64_t t = 0; t < tokens; ++t) {
      Floats alone(1, shape.width), one_h(1, shape.hidden), one_y(1, shape.hidden);
      const auto token = [&](Floats& from) {
        return make_tensor(from.values.data() + t * shape.hidden, DType::kF32, {1, shape.hidden});
      };
      row->run(test.cx, {alone.tensor(), one_h.tensor(), one_y.tensor()}, token(x), token(d), norm,
               w.view);
      ASSERT_TRUE(std::equal(alone.values.begin(), alone.values.end(), p.row(t)))
          << row->name << " token " << t;
    }
  }
}

TEST(NormLinear, EveryKernelEqualsTheTwinAndItselfAlone) {
  Ran ran;
  for (const Shape& shape : kShapes)
    for (const int64_t tokens : {1, 2, 5, 31}) {
      if (shape.hidden == 1024 && tokens > 5) continue;
      check(ran, shape, tokens, DType::kF32, 0);
      check(ran, shape, tokens, DType::kBF16, 1);
      if (shape.format == Format::kBF16) continue;
      for (const ActFormat format : {ActFormat::kInt8, ActFormat::kInt8Row})
        check(ran, shape, tokens, DType::kF32, 1, format);
    }
  for (const auto& [format, kernels] : ran)
    EXPECT_EQ(kernels > 0, runs_here(format)) << act_format_name(format);
}

// A weight that bf16 holds near zero and not near one.
TEST(NormLinear, TheOffsetLosesNothing) {
  const std::vector<uint16_t> weight(1, bf16_from_float(0x1p-12f));
  float x = 2, h = 0;
  ref::rms_norm(DType::kF32, &h, &x, {weight.data(), 0, 1}, 1);
  EXPECT_EQ(h, 1 + 0x1p-12f);
}

}  // namespace
}  // namespace nibble::ops
