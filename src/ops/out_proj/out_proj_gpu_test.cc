#include <gtest/gtest.h>

#include "ops/gpu_matmul/gemv_gpu_test.h"
#include "ops/out_proj/out_proj.h"
#include "ops/wrong_blocks.h"

namespace nibble::ops {
namespace {

struct Shape {
  int64_t hidden, width;
};
// gpt-oss's own, the tiny model's, one unit of 64 columns, and units that fill no larger chunk.
constexpr Shape kShapes[] = {{2880, 4096}, {256, 512}, {16, 64}, {48, 320}, {112, 192}};

void check(const Shape& shape, Format format, int64_t tokens) {
  Random random(static_cast<uint32_t>(shape.width + tokens));
  const OutProjDesc desc{shape.hidden, shape.width, format, tokens};
  TestWeight w(random, format, 1, shape.hidden, shape.width);
  Floats att(random, tokens, shape.width, DType::kBF16);
  GpuProblem gpu;
  for (const OutProjKernel* row : gemv_rows(out_proj_kernels(), desc, gpu.cx.kernels, w)) {
    const Weight weight = gpu.weight(w);
    const Tensor in = gpu.tensor(att, DType::kBF16);
    const auto run = [&](const Tensor& from, int64_t n) {
      const Tensor d = gpu.output(DType::kF32, {n, shape.hidden});
      row->run(gpu.cx, d, from, weight, Step{.num_tokens = static_cast<int32_t>(n)});
      return gpu.floats(d);
    };
    const Floats got = run(in, tokens), again = run(in, tokens);
    ASSERT_EQ(got.values, again.values) << row->name;
    WrongBlocks blocks(shape.width);
    for (int64_t t = 0; t < tokens; t += alone_step(tokens)) {
      const Floats alone = run(one_row(in, t), 1);
      ASSERT_TRUE(std::equal(alone.values.begin(), alone.values.end(), got.row(t)))
          << row->name << " token " << t << " of " << tokens;
      const std::vector<float> maxima = block_maxima(att.row(t), shape.width);
      for (int64_t n = 0; n < shape.hidden; n += row_step(shape.hidden)) {
        double want;
        const double error = gemv_error(ref::Row(w.view, 0, n), att.row(t), maxima, format, &want);
        ASSERT_NEAR(got.at(t, n), want, error) << row->name << " token " << t << " row " << n;
        blocks.add(t, n, got.at(t, n), want);
      }
    }
    EXPECT_LT(blocks.worst(), 1) << row->name;
  }
}

TEST(OutProjGpu, EqualsTheTwinAndItselfAlone) {
  for (const Shape& shape : kShapes)
    for (Format format : {Format::kMxfp4, Format::kBF16})
      for (int64_t tokens : {1, 2, 5, 8, 19})
        if (!is_too_slow(shape.width * tokens)) check(shape, format, tokens);
}

// As many as a dense MLP's second half has.
TEST(OutProjGpu, OneTokenOfLongRowsEqualsTheTwin) {
  for (const int64_t width : {12288, 14336})
    if (!is_too_slow(width)) check({48, width}, Format::kBF16, 1);
}

}  // namespace
}  // namespace nibble::ops
