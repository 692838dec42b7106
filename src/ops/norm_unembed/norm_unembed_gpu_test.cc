#include <gtest/gtest.h>

#include "ops/gpu_matmul/gemv_gpu_test.h"
#include "ops/norm_ref.h"
#include "ops/norm_unembed/norm_unembed.h"
#include "ops/wrong_blocks.h"

namespace nibble::ops {
namespace {

struct Shape {
  int64_t hidden, vocab;
};
constexpr Shape kShapes[] = {{2880, 5040}, {256, 3072}, {64, 16}, {320, 48}};

// h is the twin's but for values near a rounding boundary of bf16: a whole unit of those, 2^-7.
void check(const Shape& shape, Format format, const std::vector<int32_t>& out_rows) {
  const int64_t tokens = 40, rows = static_cast<int64_t>(out_rows.size());
  Random random(2);
  const NormUnembedDesc desc{shape.hidden, shape.vocab, format, 1 << 20};
  TestWeight w(random, format, 1, shape.vocab, shape.hidden, /*has_bias=*/false);
  const std::vector<uint16_t> weight = random.bf16s(shape.hidden, 0.3f, 1);
  const Floats x(random, tokens, shape.hidden), d(random, tokens, shape.hidden);
  GpuProblem gpu;
  for (const auto* row : gemv_rows_and("_gemm", norm_unembed_kernels(), desc, gpu.cx.kernels, w)) {
    const Weight on_gpu = gpu.weight(w);
    const Norm norm{gpu.array(weight), 1e-5f};
    const Tensor gx = gpu.tensor(x, DType::kF32), gd = gpu.tensor(d, DType::kF32);
    const auto run = [&](const std::vector<int32_t>& which) {
      const auto n = static_cast<int32_t>(which.size());
      const Tensor logits = gpu.output(DType::kF32, {n, shape.vocab});
      const Tensor h = gpu.output(DType::kBF16, {n, shape.hidden});
      const Step step{.num_tokens = tokens, .num_out = n, .out_rows = gpu.array(which)};
      row->run(gpu.cx, logits, h, gx, gd, norm, on_gpu, step);
      return gpu.floats(logits);
    };
    const Floats got = run(out_rows);
    ASSERT_EQ(got.values, run(out_rows).values) << row->name;
    WrongBlocks blocks(shape.hidden);
    for (int64_t r = 0; r < rows; r += alone_step(rows)) {
      const Floats alone = run({out_rows[r]});
      ASSERT_TRUE(std::equal(alone.values.begin(), alone.values.end(), got.row(r)))
          << row->name << " row " << r;
      std::vector<float> sum(shape.hidden), h(shape.hidden);
      ref::add(sum.data(), x.row(out_rows[r]), d.row(out_rows[r]), shape.hidden);
      ref::rms_norm(DType::kBF16, h.data(), sum.data(), {weight.data(), 1e-5f}, shape.hidden);
      const std::vector<float> maxima = block_maxima(h.data(), shape.hidden);
      for (int64_t n = 0; n < shape.vocab; n += row_step(shape.vocab)) {
        const ref::Row weights(w.view, 0, n);
        double want, abs;
        weights.dot(h.data(), &abs);
        const double error = gemv_error(weights, h.data(), maxima, format, &want);
        ASSERT_NEAR(got.at(r, n), want, error + 0x1p-7 * abs) << row->name << " row " << r;
        blocks.add(r, n, got.at(r, n), want);
      }
    }
    EXPECT_LT(blocks.worst(), 1) << row->name;
  }
}

TEST(NormUnembedGpu, EqualsTheTwinAndItselfAlone) {
  for (const Shape& shape : kShapes)
    for (Format format : {Format::kMxfp4, Format::kBF16})
      for (const auto& rows :
           {std::vector<int32_t>{39}, {0, 3, 4}, {1, 2, 3, 5, 8, 13, 21, 34, 35, 36}, {}})
        if (!is_too_slow(shape.hidden)) check(shape, format, rows);
}

}  // namespace
}  // namespace nibble::ops
