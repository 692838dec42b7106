#include <gtest/gtest.h>

#include "ops/embed/embed.h"
#include "ops/gpu_test_problem.h"

namespace nibble::ops {
namespace {

// Rows and zeros exactly; a cosine within a unit of the twin's: both round a double once, and the
// doubles differ by 1e-15 or less.
void check(int64_t hidden, int head_dim, const std::vector<int32_t>& positions,
           Format format = Format::kBF16) {
  Random random(3);
  const TestWeight table(random, format, 1, 50, hidden, /*has_bias=*/false);
  const auto tokens = static_cast<int32_t>(positions.size());
  std::vector<int32_t> ids;
  for (int32_t t = 0; t < tokens; ++t) ids.push_back(static_cast<int32_t>(random.below(50)));
  const Rope rope = make_rope(
      head_dim, 150000, YarnParams{.factor = 32, .original_max_position = 4096, .truncate = false});
  const Step step{.num_tokens = tokens, .tokens = ids.data(), .positions = positions.data()};
  Floats x(tokens, hidden), d(tokens, hidden), angles(tokens, head_dim);
  TestCtx test(DType::kF32, 0);
  ref::embed(test.cx, {x.tensor(), d.tensor(), angles.tensor()}, table.view, rope, step);
  GpuProblem gpu;
  const EmbedDesc desc{50, hidden, format, tokens};
  const EmbedOut out{gpu.output(DType::kF32, {tokens, hidden}),
                     gpu.output(DType::kF32, {tokens, hidden}),
                     gpu.output(DType::kF32, {tokens, head_dim})};
  for (const EmbedKernel* row : kernels_here(embed_kernels(), desc, gpu.cx.kernels)) {
    row->run(gpu.cx, out, gpu.weight(table), rope, gpu.step(step));
    EXPECT_EQ(gpu.floats(out.x).values, x.values) << row->name;
    EXPECT_EQ(gpu.floats(out.d).values, d.values) << row->name;
    const Floats got = gpu.floats(out.cos_sin);
    for (size_t i = 0; i < got.values.size(); ++i)
      ASSERT_NEAR(got.values[i], angles.values[i], 2 * kEps * std::fabs(angles.values[i]) + 1e-14)
          << row->name << " at " << i;
  }
}

TEST(EmbedGpu, EveryKernelEqualsTheTwin) {
  check(2880, 64, {0, 1, 100, 4096, 131071});
  check(256, 64, {7});
  check(72, 128, {1, 2, 3, 65535, 1000000});
  std::vector<int32_t> many;
  for (int32_t i = 0; i < 300; ++i) many.push_back(i * 437);
  check(64, 64, many);
  check(1, 2, {0, 3});
  check(999, 80, {5, 1000});
  check(1003, 512, {1, 70000});
  check(32, 1024, {9});
  for (const FormatRow& row : kFormats) {
    const int64_t block = row.block_elems;
    check(block, 64, {1, 2}, row.format);
    check(9 * block, 96, {0, 77, 100000}, row.format);
    if (row.format == Format::kFp8Block) check(300, 96, {5}, row.format);
  }
}

}  // namespace
}  // namespace nibble::ops
