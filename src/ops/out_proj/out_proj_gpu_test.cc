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
      for (int64_t tokens : {1, 2, 4, 5, 8, 19})
        if (!is_too_slow(shape.width * tokens)) check(shape, format, tokens);
}

// As many as a dense MLP's second half has.
TEST(OutProjGpu, OneTokenOfLongRowsEqualsTheTwin) {
  for (const int64_t width : {12288, 14336})
    if (!is_too_slow(width)) check({48, width}, Format::kBF16, 1);
}

// A row of Hopper's own for weights that it does not round, with a bias or without.
void check_sm90(std::string_view name, Format format, const Shape& shape, int64_t tokens,
                bool has_bias) {
  const auto [hidden, width] = shape;
  SCOPED_TRACE(testing::Message() << name << " " << hidden << " x " << width << ", " << tokens
                                  << " tokens");
  Random random(static_cast<uint32_t>(width + tokens));
  const OutProjDesc desc{hidden, width, format, tokens};
  TestWeight w(random, format, 1, hidden, width, has_bias);
  const Floats att(random, tokens, width, DType::kBF16);
  GpuProblem gpu(gpu::scratch_bytes(desc));
  KernelOptions options = gpu.cx.kernels;
  options.any_size = true;
  if (options.gpu.sm != 90) GTEST_SKIP() << "a Hopper GPU's";
  const auto rows = out_proj_kernels();
  const auto row =
      std::find_if(rows.begin(), rows.end(), [&](const auto& r) { return r.name == name; });
  ASSERT_NE(row, rows.end());
  ASSERT_EQ(row->refuse(desc, options), nullptr);
  if (row->layout != w.view.layout) w.pack(row->layout);
  const auto run = [&] {
    const Tensor d = gpu.output(DType::kF32, {tokens, hidden});
    row->run(gpu.cx, d, gpu.tensor(att, DType::kBF16), gpu.weight(w),
             Step{.num_tokens = static_cast<int32_t>(tokens)});
    return gpu.floats(d);
  };
  const Floats got = run(), again = run();
  ASSERT_EQ(got.values, again.values);
  // Sums of tensor cores, which truncate, and of shares.
  const double e = 2 * static_cast<double>(width + 16) * kEps;
  WrongBlocks blocks(width);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t n = t % 7; n<hidden; n += hidden> 256 ? 13 : 1) {
      double abs;
      const double want = ref::Row(w.view, 0, n).dot(att.row(t), &abs);
      ASSERT_NEAR(got.at(t, n), want, e * abs) << "token " << t << " row " << n;
      blocks.add(t, n, got.at(t, n), want);
    }
  EXPECT_LT(blocks.worst(), 1);
}

struct Sm90Problem {
  Shape shape;
  int64_t tokens;
};

// Rows that stream: K whole and in shares, blocks whose last rows are none of the matrix or of the
// last warpgroup, K beyond the ring and shorter than it, every width.
TEST(OutProjGpu, StreamEqualsTheTwin) {
  constexpr Sm90Problem kProblems[] = {{{4096, 768}, 9},   {{4000, 1984}, 2},  {{2880, 512}, 33},
                                       {{28656, 192}, 17}, {{7984, 1280}, 64}, {{4096, 4608}, 31},
                                       {{48, 64}, 5},      {{160, 4160}, 40}};
  for (const auto& [shape, tokens] : kProblems)
    for (const bool has_bias : {false, true})
      if (!is_too_slow(shape.width * tokens))
        check_sm90("sm90_bf16_stream", Format::kBF16, shape, tokens, has_bias);
}

// NVFP4 in shares of K, even and not, and whole; blocks of 192 rows and of 256, the last of them
// whole or not.
TEST(OutProjGpu, Nvfp4StreamEqualsTheTwin) {
  constexpr Sm90Problem kProblems[] = {{{4096, 2304}, 9},  {{4096, 1280}, 64}, {{3024, 2048}, 30},
                                       {{4096, 2048}, 20}, {{6128, 768}, 33},  {{24560, 512}, 17},
                                       {{512, 256}, 16},   {{768, 12288}, 64}};
  for (const auto& [shape, tokens] : kProblems)
    for (const bool has_bias : {false, true})
      if (!is_too_slow(shape.width * tokens))
        check_sm90("sm90_nvfp4_stream", Format::kNvfp4, shape, tokens, has_bias);
}

// Prompts that are multiplied in parts.
TEST(OutProjGpu, PartsOfAPromptEqualTheTwin) {
  if (is_too_slow(64 * 3101)) return;
  check_sm90("sm90_nvfp4_gemm", Format::kNvfp4, {4112, 64}, 3101, true);
  check_sm90("sm90_bf16_gemm", Format::kBF16, {4112, 64}, 3101, true);
}

}  // namespace
}  // namespace nibble::ops
