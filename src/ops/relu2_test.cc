// moe_up, shared_up and mlp_up without a gate: u = max(h W^T, 0)^2, every row of the tables against
// products in double.
#include <gtest/gtest.h>

#include "ops/cpu_matmul/float_kernels.h"
#include "ops/cpu_matmul/product.h"
#include "ops/matmul_ref.h"
#include "ops/mlp_up/mlp_up.h"
#include "ops/moe_up/moe_up.h"
#include "ops/norm_ref.h"
#include "ops/shared_up/shared_up.h"
#include "ops/test_problem.h"

namespace nibble::ops {
namespace {

struct Shape {
  int64_t hidden, width;
  Format format;
};
constexpr Shape kShapes[] = {{72, 21, Format::kBF16},     {96, 64, Format::kMxfp4},
                             {80, 21, Format::kNvfp4},    {1024, 80, Format::kNvfp4},
                             {160, 37, Format::kFp8Row},  {256, 11, Format::kInt4G32},
                             {300, 20, Format::kFp8Block}};

// (y + e)^2 - y^2, and two roundings.
void expect_relu2(float got, const Weight& w, int64_t expert, int64_t column, const float* h,
                  double error, DType act, const char* row) {
  double abs;
  const double y = ref::Row(w, expert, column).dot(h, &abs), e = error * abs,
               want = y > 0 ? y * y : 0;
  ASSERT_NEAR(got, want,
              2 * std::fabs(y) * e + e * e + 2 * kEps * want + store_error(act, want) + 1e-30)
      << row << " column " << column;
}

struct Settings {
  int64_t tokens;
  DType act;
  ActFormat format;
};

void check_experts(const Shape& s, const Settings& how) {
  constexpr int64_t kExperts = 4, kTopK = 3;
  Random random(static_cast<uint32_t>(how.tokens));
  TestWeight w(random, s.format, kExperts, s.width, s.hidden);
  Floats h(random, how.tokens, s.hidden, how.act), u(how.tokens * kTopK, s.width);
  TestRouting routing(how.tokens, kExperts, kTopK);
  routing.randomize(random);
  const MoeUpDesc desc{s.hidden, s.width, kExperts, kTopK, s.format, 1, {}, kRelu2};
  TestCtx test(how.act, scratch_bytes(desc, how.tokens, 2));
  for (const MoeUpKernel* row : kernels_here(moe_up_kernels(), desc, how.format)) {
    if (w.view.layout != row->layout) w.pack(row->layout);
    const ActFormat rounded = rounded_by(row->name, how.format);
    const Floats seen = as_input(h, rounded);
    row->run(test.cx, u.tensor(), h.tensor(), routing.view, w.view, kRelu2);
    for (int64_t i = 0; i < how.tokens * kTopK; ++i)
      for (int64_t j = 0; j < s.width; ++j)
        expect_relu2(u.at(routing.slot[i], j), w.view, routing.ids[i], j, seen.row(i / kTopK),
                     dot_error(s.hidden, rounded), how.act, row->name);
  }
}

void check_shared(const Shape& s, const Settings& how) {
  Random random(static_cast<uint32_t>(how.tokens));
  TestWeight w(random, s.format, 1, s.width, s.hidden, /*has_bias=*/false);
  Floats h(random, how.tokens, s.hidden, how.act), u(how.tokens, s.width);
  const SharedUpDesc desc{.hidden = s.hidden, .width = s.width, .format = s.format, .act = kRelu2};
  TestCtx test(how.act, scratch_bytes(desc, how.tokens, 2));
  test.cx.kernels.activations = how.format;
  for (const SharedUpKernel* row : kernels_here(shared_up_kernels(), desc, how.format)) {
    if (w.view.layout != row->layout) w.pack(row->layout);
    const ActFormat rounded = rounded_by(row->name, how.format);
    const Floats seen = as_input(h, rounded);
    row->run(test.cx, u.tensor(), h.tensor(), w.view, /*gate=*/nullptr, kRelu2);
    for (int64_t t = 0; t < how.tokens; ++t)
      for (int64_t j = 0; j < s.width; ++j)
        expect_relu2(u.at(t, j), w.view, 0, j, seen.row(t), dot_error(s.hidden, rounded), how.act,
                     row->name);
  }
}

void check_mlp(const Shape& s, const Settings& how) {
  Random random(static_cast<uint32_t>(how.tokens));
  TestWeight w(random, s.format, 1, s.width, s.hidden, /*has_bias=*/false);
  const std::vector<uint16_t> weight = random.bf16s(s.hidden, 0.3f, 1);
  const Norm norm{weight.data(), 1e-5f};
  Floats x(random, how.tokens, s.hidden, how.act), d(random, how.tokens, s.hidden, how.act),
      u(how.tokens, s.width), h(how.tokens, s.hidden), y(how.tokens, s.hidden);
  const MlpUpDesc desc{.hidden = s.hidden, .width = s.width, .format = s.format, .act = kRelu2};
  TestCtx test(how.act, scratch_bytes(desc, how.tokens, 2));
  test.cx.kernels.activations = how.format;
  for (const MlpUpKernel* row : kernels_here(mlp_up_kernels(), desc, how.format)) {
    if (w.view.layout != row->layout) w.pack(row->layout);
    const ActFormat rounded = rounded_by(row->name, how.format);
    row->run(test.cx, {u.tensor(), h.tensor(), y.tensor()}, x.tensor(), d.tensor(), norm, w.view,
             kRelu2);
    const Floats seen = as_input(h, rounded);
    for (int64_t t = 0; t < how.tokens; ++t)
      for (int64_t j = 0; j < s.width; ++j)
        expect_relu2(u.at(t, j), w.view, 0, j, seen.row(t), dot_error(s.hidden, rounded), how.act,
                     row->name);
  }
}

TEST(Relu2, EveryKernelEqualsTheProduct) {
  for (const Shape& shape : kShapes)
    for (const int64_t tokens : {1, 5, 31})
      for (const auto& [act, format] :
           {std::pair(DType::kF32, ActFormat::kFloat), std::pair(DType::kBF16, ActFormat::kFloat),
            std::pair(DType::kF32, ActFormat::kInt8),
            std::pair(DType::kF32, ActFormat::kInt8Row)}) {
        if (format != ActFormat::kFloat && (!runs_here(format) || shape.format != Format::kMxfp4))
          continue;
        check_experts(shape, {tokens, act, format});
        check_shared(shape, {tokens, act, format});
        check_mlp(shape, {tokens, act, format});
      }
}

TEST(Relu2, NoNumberIsLeftOut) {
  EXPECT_EQ(ref::relu2(-3), 0);
  EXPECT_EQ(ref::relu2(3), 9);
  EXPECT_TRUE(std::isnan(ref::relu2(NAN)));
  const float y[] = {-3, 0, 0.5f, NAN, 4};
  float u[5];
  for (const cpu::Isa isa : {cpu::Isa::kScalar, cpu::detect_isa()}) {
    float_kernels(float_isa(isa)).swiglu(y, u, 5, kRelu2);
    EXPECT_EQ(std::vector<float>(u, u + 3), (std::vector<float>{0, 0, 0.25f}));
    EXPECT_TRUE(std::isnan(u[3]));
    EXPECT_EQ(u[4], 16);
  }
}

// One matrix's bytes and products a column, not two.
TEST(Relu2, Bytes) {
  const MoeUpDesc gated{64, 32, 4, 2, Format::kBF16},
      alone{64, 32, 4, 2, Format::kBF16, 1, {}, kRelu2};
  EXPECT_EQ(flops(gated, 3), 2 * flops(alone, 3));
  EXPECT_EQ(bytes(gated, 0, 1), 2 * bytes(alone, 0, 1));
}

}  // namespace
}  // namespace nibble::ops
