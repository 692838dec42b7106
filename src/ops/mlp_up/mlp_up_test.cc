#include "ops/mlp_up/mlp_up.h"

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
                             {160, 96, Format::kMxfp8},  {32, 37, Format::kMxfp4},
                             {72, 21, Format::kBF16},    {80, 21, Format::kNvfp4},
                             {96, 64, Format::kNvfp4},   {160, 96, Format::kFp8Row},
                             {300, 20, Format::kFp8Row}, {256, 11, Format::kInt4G32}};

// Errors of gate and up: of their products, of what the norm in front is off by, and, where inputs
// are rounded to bf16, of that.
// ran: how many kernels there were, of each format of activations.
using Ran = std::map<ActFormat, size_t>;
void check(Ran& ran, const Shape& shape, int64_t tokens, DType act, const Swiglu& swiglu,
           ActFormat format = ActFormat::kFloat) {
  Random random(static_cast<uint32_t>(tokens));
  TestWeight w(random, shape.format, 1, 2 * shape.width, shape.hidden, /*has_bias=*/tokens % 2);
  const std::vector<uint16_t> weight = random.bf16s(shape.hidden, 0.3f, 1);
  const Norm norm{weight.data(), 1e-5f};
  Floats x(random, tokens, shape.hidden, act), d(random, tokens, shape.hidden, act);
  Floats want_y(tokens, shape.hidden), want_h(tokens, shape.hidden);
  ref::add(want_y.values.data(), x.row(0), d.row(0), tokens * shape.hidden);
  for (int64_t t = 0; t < tokens; ++t)
    ref::rms_norm(act, want_h.values.data() + t * shape.hidden, want_y.row(t), norm, shape.hidden);
  const MlpUpDesc desc{.hidden = shape.hidden, .width = shape.width, .format = shape.format};
  TestCtx test(act, scratch_bytes(desc, tokens, 2));
  test.cx.kernels.activations = format;
  const auto kernels = kernels_here(mlp_up_kernels(), desc, format);
  ran[format] += kernels.size();
  for (const MlpUpKernel* row : kernels) {
    if (w.view.layout != row->layout) w.pack(row->layout);
    const ActFormat rounded = rounded_by(row->name, format);
    Floats u(tokens, shape.width), h(tokens, shape.hidden), y(tokens, shape.hidden);
    const auto run = [&](const MlpUpOut& out, const Tensor& from, const Tensor& delta) {
      row->run(test.cx, out, from, delta, norm, w.view, swiglu);
    };
    run({u.tensor(), h.tensor(), y.tensor()}, x.tensor(), d.tensor());
    ASSERT_EQ(y.values, want_y.values) << row->name;
    for (size_t i = 0; i < h.values.size(); ++i)
      ASSERT_NEAR(h.values[i], want_h.values[i],
                  norm_error(act, shape.hidden) * std::fabs(want_h.values[i]));
    const Floats seen = as_input(h, rounded);
    const double e = dot_error(shape.hidden, rounded);
    for (int64_t j = 0; j < shape.width; ++j) {
      const ref::Row gate_row(w.view, 0, 2 * j), up_row(w.view, 0, 2 * j + 1);
      for (int64_t t = 0; t < tokens; ++t) {
        double gate_abs, up_abs;
        const double gate = gate_row.dot(seen.row(t), &gate_abs);
        const double up = up_row.dot(seen.row(t), &up_abs);
        const double want = ref::swiglu(gate, up, swiglu);
        ASSERT_NEAR(
            u.at(t, j), want,
            swiglu_error(gate, e * gate_abs, up, e * up_abs, swiglu) + store_error(act, want))
            << row->name << " token " << t << " column " << j;
      }
    }
    for (int64_t t = 0; t < tokens; ++t) {
      Floats alone(1, shape.width), one_h(1, shape.hidden), one_y(1, shape.hidden);
      const auto token = [&](Floats& from) {
        return make_tensor(from.values.data() + t * shape.hidden, DType::kF32, {1, shape.hidden});
      };
      run({alone.tensor(), one_h.tensor(), one_y.tensor()}, token(x), token(d));
      ASSERT_TRUE(std::equal(alone.values.begin(), alone.values.end(), u.row(t)))
          << row->name << " token " << t;
    }
  }
}

TEST(MlpUp, EveryKernelEqualsTheTwinAndItselfAlone) {
  Ran ran;
  for (const Shape& shape : kShapes)
    for (int64_t tokens : {1, 2, 5, 31}) {
      if (shape.hidden == 1024 && tokens > 5) continue;
      check(ran, shape, tokens, DType::kF32, {});
      check(ran, shape, tokens, DType::kBF16, kClampedSwiglu);
      if (shape.format == Format::kBF16) continue;
      for (const ActFormat format : {ActFormat::kInt8, ActFormat::kInt8Row}) {
        if (shape.width % 8 != 0) continue;  // no panels
        if (format == ActFormat::kInt8Row && shape.hidden % 64 != 0) continue;
        check(ran, shape, tokens, DType::kF32, {}, format);
      }
    }
  for (const auto& [format, kernels] : ran)
    EXPECT_EQ(kernels > 0, runs_here(format)) << act_format_name(format);
}

TEST(MlpUp, TwinByHand) {
  // One input of 2 behind a norm that keeps it: x = 3, d = -1; gate 1, up -3.
  const std::vector<uint16_t> bits = {bf16_from_float(.5f), bf16_from_float(-1.5f)};
  const Weight w{.rows = 2, .cols = 1, .codes = reinterpret_cast<const uint8_t*>(bits.data())};
  const uint16_t two = bf16_from_float(2);
  Floats x(1, 1), d(1, 1), y(1, 1), h(1, 1), u(1, 1);
  x.values = {3}, d.values = {-1};
  TestCtx test(DType::kF32, 0, 1);
  ref::mlp_up(test.cx, {u.tensor(), h.tensor(), y.tensor()}, x.tensor(), d.tensor(), {&two, 0}, w,
              {});
  EXPECT_EQ(y.at(0, 0), 2);
  EXPECT_EQ(h.at(0, 0), 2);
  EXPECT_NEAR(u.at(0, 0), -3 / (1 + std::exp(-1.0)), 1e-6);
}

TEST(MlpUp, Bytes) {
  const MlpUpDesc up{4096, 12288};  // Qwen3-8B
  EXPECT_EQ(bytes(up, 0), 2LL * 2 * 12288 * 4096 + 2 * 4096);
  EXPECT_EQ(flops(up, 3), 3LL * 4 * 12288 * 4096);
}

}  // namespace
}  // namespace nibble::ops
