#include "ops/moe_up/moe_up.h"

#include <gtest/gtest.h>

#include <map>

#include "ops/matmul_ref.h"
#include "ops/test_problem.h"

namespace nibble::ops {
namespace {

struct Shape {
  int64_t hidden, width, experts, top_k;
  Format format;
};
constexpr Shape kShapes[] = {{2880, 160, 6, 4, Format::kMxfp4},  // gpt-oss's hidden size
                             {96, 64, 5, 2, Format::kMxfp4},     {160, 96, 3, 3, Format::kMxfp4},
                             {32, 37, 4, 1, Format::kMxfp4},     {72, 20, 3, 2, Format::kBF16},
                             {80, 21, 4, 3, Format::kNvfp4},     {96, 64, 5, 2, Format::kNvfp4},
                             {300, 20, 3, 2, Format::kFp8Block}, {96, 64, 3, 2, Format::kFp8Row},
                             {160, 32, 3, 2, Format::kFp8Block}, {96, 64, 5, 2, Format::kBF16}};

// ran: how many kernels there were, of each format of activations.
using Ran = std::map<ActFormat, size_t>;
void check(Ran& ran, const Shape& shape, int64_t tokens, DType act, const Swiglu& swiglu,
           ActFormat format = ActFormat::kFloat) {
  Random random(static_cast<uint32_t>(tokens));
  TestWeight w(random, shape.format, shape.experts, 2 * shape.width, shape.hidden);
  Floats h(random, tokens, shape.hidden, act), got(tokens * shape.top_k, shape.width),
      alone(shape.top_k, shape.width);
  TestRouting routing(tokens, shape.experts, shape.top_k);
  routing.randomize(random);
  const MoeUpDesc desc{shape.hidden, shape.width, shape.experts, shape.top_k, shape.format};
  TestCtx test(act, scratch_bytes(desc, tokens, 2));
  const auto kernels = kernels_here(moe_up_kernels(), desc, format);
  ran[format] += kernels.size();
  for (const MoeUpKernel* row : kernels) {
    if (w.view.layout != row->layout) w.pack(row->layout);
    const ActFormat rounded = rounded_by(row->name, format);
    const Floats seen = as_input(h, rounded);
    row->run(test.cx, got.tensor(), h.tensor(), routing.view, w.view, swiglu);
    for (int64_t i = 0; i < tokens * shape.top_k; ++i) {
      const float* input = seen.row(i / shape.top_k);
      for (int64_t j = 0; j < shape.width; ++j) {
        double gate_abs, up_abs;
        const double gate = ref::Row(w.view, routing.ids[i], 2 * j).dot(input, &gate_abs);
        const double up = ref::Row(w.view, routing.ids[i], 2 * j + 1).dot(input, &up_abs);
        const double e = dot_error(shape.hidden, rounded);
        const double want = ref::swiglu(gate, up, swiglu);
        ASSERT_NEAR(
            got.at(routing.slot[i], j), want,
            swiglu_error(gate, e * gate_abs, up, e * up_abs, swiglu) + store_error(act, want))
            << row->name << " choice " << i << " column " << j;
      }
    }
    for (int64_t t = 0; t < tokens; ++t) {
      TestRouting one(1, shape.experts, shape.top_k);
      std::copy_n(routing.ids.begin() + t * shape.top_k, shape.top_k, one.ids.begin());
      sort_by_expert(one.view);
      const Tensor input =
          make_tensor(h.values.data() + t * shape.hidden, DType::kF32, {1, shape.hidden});
      row->run(test.cx, alone.tensor(), input, one.view, w.view, swiglu);
      for (int64_t k = 0; k < shape.top_k; ++k)
        ASSERT_TRUE(std::equal(alone.row(one.slot[k]), alone.row(one.slot[k]) + shape.width,
                               got.row(routing.slot[t * shape.top_k + k])))
            << row->name << " token " << t;
    }
  }
}

TEST(MoeUp, EveryKernelEqualsTheTwinAndItselfAlone) {
  Ran ran;
  for (const Shape& shape : kShapes)
    for (int64_t tokens : {1, 2, 5, 31}) {
      if (shape.hidden == 2880 && tokens > 5) continue;
      check(ran, shape, tokens, DType::kF32, kClampedSwiglu);
      check(ran, shape, tokens, DType::kF32, {});
      check(ran, shape, tokens, DType::kBF16, {1.702f, 1, 0.75f});  // a limit that clamps
      for (const ActFormat format : {ActFormat::kInt8, ActFormat::kInt8Row})
        check(ran, shape, tokens, DType::kF32, kClampedSwiglu, format);
    }
  for (const auto& [format, kernels] : ran)
    EXPECT_EQ(kernels > 0, runs_here(format)) << act_format_name(format);
}

TEST(MoeUp, ActivationByHand) {
  const double cases[][3] = {{1, 0, .845795766},         {1, -1, 0},
                             {8, 9, 55.999625},          {-8, -9, 5.85985732e-05},
                             {-20, 20, -2.63472819e-13}, {.5, .25, .437985546},
                             {7, 7, 55.999625},          {-1, 2, -.462612702}};
  // Worked out with 1.702 in double; as float32 it is off by 1.3e-8, and exp(34) by 34 times that.
  for (const auto& [gate, up, want] : cases)
    EXPECT_NEAR(ref::swiglu(gate, up, kClampedSwiglu), want, std::fabs(want) * 5e-7)
        << gate << " " << up;
}

// A scale of 255 is NaN: what reads that row is NaN too, and not what clamping makes of it.
TEST(MoeUp, DamagedRowsShow) {
  for (const ActFormat format : {ActFormat::kFloat, ActFormat::kInt8})
    for (const int64_t bad_row : {6, 7}) {  // gate and up of column 3
      Random random(5);
      TestWeight w(random, Format::kMxfp4, 1, 32, 32);
      w.scales[bad_row] = 255;
      Floats h(random, 6, 32), u(6, 16);
      TestRouting routing(6, 1, 1);
      sort_by_expert(routing.view);
      const MoeUpDesc desc{32, 16, 1, 1, Format::kMxfp4};
      TestCtx test(DType::kF32, scratch_bytes(desc, 6, 2));
      for (const MoeUpKernel* row : kernels_here(moe_up_kernels(), desc, format)) {
        if (w.view.layout != row->layout) w.pack(row->layout);
        row->run(test.cx, u.tensor(), h.tensor(), routing.view, w.view, kClampedSwiglu);
        for (int64_t t = 0; t < 6; ++t)
          for (int64_t j = 0; j < 16; ++j)
            EXPECT_EQ(std::isnan(u.at(t, j)), j == 3) << row->name << " row " << bad_row;
      }
    }
}

TEST(MoeUp, TwinUsesEachSlotsExpert) {
  Random random(1);
  const TestWeight w(random, Format::kMxfp4, 3, 4, 32);
  Floats h(random, 2, 32), u(4, 2);
  TestRouting routing(2, 3, 2);
  routing.ids = {2, 0, 0, 1};
  sort_by_expert(routing.view);
  EXPECT_EQ(routing.slot, (std::vector<int32_t>{3, 0, 1, 2}));
  EXPECT_EQ(routing.token, (std::vector<int32_t>{0, 1, 1, 0}));
  TestCtx test(DType::kF32, 0, 1);
  ref::moe_up(test.cx, u.tensor(), h.tensor(), routing.view, w.view, kClampedSwiglu);
  const double gate = ref::Row(w.view, 2, 2).dot(h.row(0)),
               up = ref::Row(w.view, 2, 3).dot(h.row(0));
  EXPECT_EQ(u.at(3, 1), static_cast<float>(ref::swiglu(gate, up, kClampedSwiglu)));
}

TEST(MoeUp, Bytes) {
  // Up and down of one gpt-oss expert: 13,236,480 bytes with biases.
  const MoeUpDesc up{2880, 2880, 32, 4, Format::kMxfp4};
  EXPECT_EQ(bytes(up, 0, 1), 2 * 2880 * 90 * 17 + 2 * 2 * 2880);
  EXPECT_EQ(flops(up, 1), 2LL * 4 * 5760 * 2880);
}

}  // namespace
}  // namespace nibble::ops
