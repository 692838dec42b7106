#include "ops/shared_up/shared_up.h"

#include <gtest/gtest.h>

#include <map>

#include "ops/matmul_ref.h"
#include "ops/test_problem.h"

namespace nibble::ops {
namespace {

struct Shape {
  int64_t hidden, width;
  Format format;
};
constexpr Shape kShapes[] = {{1024, 200, Format::kBF16}, {96, 64, Format::kMxfp4},
                             {72, 21, Format::kBF16},    {80, 21, Format::kNvfp4},
                             {96, 64, Format::kNvfp4},   {160, 96, Format::kFp8Row}};

// The sigmoid moves by a quarter of its argument's error, beside a dozen roundings.
using Ran = std::map<ActFormat, size_t>;
void check(Ran& ran, const Shape& shape, int64_t tokens, DType act,
           ActFormat format = ActFormat::kFloat) {
  Random random(static_cast<uint32_t>(tokens));
  TestWeight w(random, shape.format, 1, 2 * shape.width, shape.hidden, /*has_bias=*/false);
  const std::vector<uint16_t> gate_row =
      random.bf16s(shape.hidden, 1 / std::sqrt(static_cast<float>(shape.hidden)));
  Floats h(random, tokens, shape.hidden, act);
  const SharedUpDesc desc{.hidden = shape.hidden, .width = shape.width, .format = shape.format};
  TestCtx test(act, scratch_bytes(desc, tokens, 2));
  test.cx.kernels.activations = format;
  const auto kernels = kernels_here(shared_up_kernels(), desc, format);
  ran[format] += kernels.size();
  for (const SharedUpKernel* row : kernels) {
    if (w.view.layout != row->layout) w.pack(row->layout);
    const ActFormat rounded = rounded_by(row->name, format);
    Floats u(tokens, shape.width);
    row->run(test.cx, u.tensor(), h.tensor(), w.view, gate_row.data(), {});
    const Floats seen = as_input(h, rounded);
    const double e = dot_error(shape.hidden, rounded);
    for (int64_t t = 0; t < tokens; ++t) {
      double logit = 0, logit_abs = 0;
      for (int64_t i = 0; i < shape.hidden; ++i) {
        const double term = double{h.at(t, i)} * bf16_to_float(gate_row[i]);
        logit += term, logit_abs += std::fabs(term);
      }
      const double p = 1 / (1 + std::exp(-logit));
      const double p_error = dot_error(shape.hidden) * logit_abs / 4 + 12 * kEps;
      for (int64_t j = 0; j < shape.width; ++j) {
        double gate_abs, up_abs;
        const double gate = ref::Row(w.view, 0, 2 * j).dot(seen.row(t), &gate_abs);
        const double up = ref::Row(w.view, 0, 2 * j + 1).dot(seen.row(t), &up_abs);
        const double of = ref::swiglu(gate, up, {});
        ASSERT_NEAR(u.at(t, j), p * of,
                    p * swiglu_error(gate, e * gate_abs, up, e * up_abs, {}) +
                        2 * p_error * std::fabs(of) + store_error(act, p * of))
            << row->name << " token " << t << " column " << j;
      }
      Floats alone(1, shape.width);
      row->run(test.cx, alone.tensor(),
               make_tensor(h.values.data() + t * shape.hidden, DType::kF32, {1, shape.hidden}),
               w.view, gate_row.data(), {});
      ASSERT_TRUE(std::equal(alone.values.begin(), alone.values.end(), u.row(t)))
          << row->name << " token " << t;
    }
  }
}

TEST(SharedUp, EveryKernelEqualsTheTwinAndItselfAlone) {
  Ran ran;
  for (const Shape& shape : kShapes)
    for (const int64_t tokens : {1, 2, 5, 31}) {
      if (shape.hidden == 1024 && tokens > 5) continue;
      for (const DType act : {DType::kF32, DType::kBF16}) check(ran, shape, tokens, act);
      if (shape.format == Format::kBF16) continue;
      for (const ActFormat format : {ActFormat::kInt8, ActFormat::kInt8Row})
        check(ran, shape, tokens, DType::kF32, format);
    }
  for (const auto& [format, kernels] : ran)
    EXPECT_EQ(kernels > 0, runs_here(format)) << act_format_name(format);
}

TEST(SharedUp, TheTwinByHand) {
  // One input of 2: gate 2 * 0.5, up 2 * 3, weighed by sigmoid(2 * -1).
  const uint16_t up[] = {bf16_from_float(0.5f), bf16_from_float(3)}, gate = bf16_from_float(-1);
  const Weight w{.rows = 2, .cols = 1, .codes = reinterpret_cast<const uint8_t*>(up)};
  float h = 2, u = 0;
  TestCtx twin(DType::kF32, 0);
  ref::shared_up(twin.cx, make_tensor(&u, DType::kF32, {1, 1}),
                 make_tensor(&h, DType::kF32, {1, 1}), w, &gate, {});
  EXPECT_NEAR(u, 6 / (1 + std::exp(-1.)) / (1 + std::exp(2.)), 1e-6);
}

}  // namespace
}  // namespace nibble::ops
