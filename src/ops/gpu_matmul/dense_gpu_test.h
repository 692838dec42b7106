// For tests of GPU rows that round what they multiply: a dense layer against the twin, and by
// itself.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/gpu_test_problem.h"
#include "ops/matmul_ref.h"
#include "ops/out_proj/out_proj.h"
#include "ops/wrong_blocks.h"

namespace nibble::ops {

// All `tokens` where there are few, else some.
inline int64_t stride(int64_t n) { return n <= 256 ? 1 : 17; }

// out_proj's `row` of att [T, K] twice, and token by token: the same bits. `x` is att as the row
// rounds it; dot(n, x, &abs) row n's product with one token of that and what its terms' magnitudes
// add up to, times which `error` is what may be off. Returns what its blocks are off by in all.
template <typename Dot>
double check_dense_rows(GpuProblem& gpu, const OutProjKernel& row, const Weight& weight,
                        const Floats& att, const Floats& x, double error, const Dot& dot) {
  const int64_t tokens = att.shape[0], cols = att.shape[1], rows = weight.rows;
  const Tensor in = gpu.tensor(att, DType::kBF16);
  const auto run = [&](int64_t first, int64_t n) {
    const Tensor d = gpu.output(DType::kF32, {n, rows});
    const Tensor from = make_tensor(in.as<uint16_t>() + first * cols, DType::kBF16, {n, cols});
    row.run(gpu.cx, d, from, weight, Step{.num_tokens = static_cast<int32_t>(n)});
    return gpu.floats(d);
  };
  const Floats got = run(0, tokens);
  EXPECT_EQ(got.values, run(0, tokens).values);
  WrongBlocks blocks(cols);
  for (int64_t t = 0; t < tokens; t += alone_step(tokens, stride(tokens))) {
    SCOPED_TRACE(testing::Message() << "token " << t);
    const Floats alone = run(t, 1);
    EXPECT_TRUE(std::equal(alone.values.begin(), alone.values.end(), got.row(t)));
    for (int64_t n = t % 5; n < rows; n += stride(rows * tokens)) {
      double abs;
      const double want = dot(n, x.row(t), &abs);
      EXPECT_NEAR(got.at(t, n), want, error * abs + kEps * std::fabs(want)) << "row " << n;
      blocks.add(t, n, got.at(t, n), want);
    }
    if (testing::Test::HasFailure()) break;
  }
  return blocks.worst();
}

}  // namespace nibble::ops
