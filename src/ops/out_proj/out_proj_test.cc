#include "ops/out_proj/out_proj.h"

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

// gpt-oss's own, rows and columns that fill no tile, and MXFP4.
constexpr Shape kShapes[] = {
    {2880, 4096, Format::kBF16},  {37, 72, Format::kBF16},      {96, 96, Format::kBF16},
    {1, 8, Format::kBF16},        {33, 160, Format::kMxfp4},    {256, 512, Format::kMxfp4},
    {208, 2880, Format::kMxfp4},  {64, 160, Format::kMxfp8},    {208, 2880, Format::kMxfp8},
    {37, 144, Format::kNvfp4},    {96, 320, Format::kNvfp4},    {144, 704, Format::kNvfp4},
    {37, 300, Format::kFp8Row},   {37, 300, Format::kFp8Block}, {37, 75, Format::kF16},
    {64, 160, Format::kFp8Row},   {80, 352, Format::kFp8Row},   {64, 160, Format::kFp8Block},
    {80, 352, Format::kFp8Block}, {80, 96, Format::kInt4G32},   {64, 384, Format::kInt4G128},
    {37, 75, Format::kF32},       {37, 96, Format::kInt4G32},   {37, 256, Format::kInt4G128}};

// ran: how many kernels there were, of each format of activations.
using Ran = std::map<ActFormat, size_t>;
void check(Ran& ran, const Shape& shape, int64_t tokens, DType act,
           ActFormat format = ActFormat::kFloat) {
  Random random(static_cast<uint32_t>(shape.hidden + tokens));
  TestWeight w(random, shape.format, 1, shape.hidden, shape.width);
  Floats att(random, tokens, shape.width, act), got(tokens, shape.hidden), alone(1, shape.hidden);
  const OutProjDesc desc{shape.hidden, shape.width, shape.format};
  const Step step{.num_tokens = static_cast<int32_t>(tokens)};
  TestCtx test(act, scratch_bytes(desc, tokens, 2));
  test.cx.kernels.activations = format;
  const auto kernels = kernels_here(out_proj_kernels(), desc, format);
  ran[format] += kernels.size();
  for (const OutProjKernel* row : kernels) {
    if (w.view.layout != row->layout) w.pack(row->layout);
    const ActFormat rounded = rounded_by(row->name, format);
    const Floats seen = as_input(att, rounded, shape.format);
    row->run(test.cx, got.tensor(), att.tensor(), w.view, step);
    for (int64_t n = 0; n < shape.hidden; ++n) {
      const ref::Row twin(w.view, 0, n);
      for (int64_t t = 0; t < tokens; ++t) {
        double abs;
        const double want = twin.dot(seen.row(t), &abs);
        ASSERT_NEAR(got.at(t, n), want, dot_error(shape.width, rounded) * abs)
            << row->name << " " << t << " " << n;
      }
    }
    // A token alone has the bits that it has in the batch.
    for (int64_t t = 0; t < tokens; ++t) {
      const Tensor one =
          make_tensor(att.values.data() + t * shape.width, DType::kF32, {1, shape.width});
      row->run(test.cx, alone.tensor(), one, w.view, Step{.num_tokens = 1});
      ASSERT_TRUE(std::equal(alone.values.begin(), alone.values.end(), got.row(t)))
          << row->name << " " << t;
    }
  }
}

TEST(OutProj, EveryKernelEqualsTheTwinAndItselfAlone) {
  Ran ran;
  for (const Shape& shape : kShapes)
    for (int64_t tokens : {1, 2, 3, 4, 5, 7, 18}) {
      if (shape.hidden == 2880 && tokens != 1 && tokens != 5) continue;
      for (DType act : {DType::kF32, DType::kBF16}) check(ran, shape, tokens, act);
      if (shape.format == Format::kBF16 || shape.format == Format::kF32 ||
          shape.format == Format::kF16)
        continue;
      for (ActFormat format : {ActFormat::kInt8, ActFormat::kInt8Row})
        check(ran, shape, tokens, DType::kF32, format);
      for (ActFormat format : {ActFormat::kFp8, ActFormat::kFp4})
        if (takes_e4m3(shape.format)) check(ran, shape, tokens, DType::kF32, format);
    }
  for (const auto& [format, kernels] : ran)
    EXPECT_EQ(kernels > 0, runs_here(format)) << act_format_name(format);
}

TEST(OutProj, TwinByHand) {
  // d = (1*2 + 3*-1 + 0.5, 0*2 + -2*-1 + 1)
  const std::vector<uint16_t> bits = {bf16_from_float(1), bf16_from_float(3), bf16_from_float(0),
                                      bf16_from_float(-2)};
  const uint16_t bias[] = {bf16_from_float(.5f), bf16_from_float(1)};
  const Weight w{
      .rows = 2, .cols = 2, .codes = reinterpret_cast<const uint8_t*>(bits.data()), .bias = bias};
  Floats att(1, 2), d(1, 2);
  att.values = {2, -1};
  TestCtx test(DType::kF32, 0, 1);
  ref::out_proj(test.cx, d.tensor(), att.tensor(), w, Step{.num_tokens = 1});
  EXPECT_EQ(d.values, (std::vector<float>{-.5f, 3.f}));
}

TEST(OutProj, BytesAndFlops) {
  // gpt-oss: 23,592,960 bytes of weight and 5,760 of bias, a token of 4096 in and 2880 out.
  const OutProjDesc desc{2880, 4096, Format::kBF16};
  EXPECT_EQ(bytes(desc, 1), 23592960 + 5760 + 4 * (2880 + 4096));
  EXPECT_EQ(flops(desc, 3), 2LL * 3 * 2880 * 4096);
}

}  // namespace
}  // namespace nibble::ops
