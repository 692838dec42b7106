#include <gtest/gtest.h>

#include "ops/gpu_matmul/gemv_gpu_test.h"
#include "ops/gpu_test_problem.h"
#include "ops/matmul_ref.h"
#include "ops/norm_linear/norm_linear.h"
#include "ops/norm_ref.h"

namespace nibble::ops {
namespace {

struct Shape {
  int64_t hidden, width;
  Format format;
};
constexpr Shape kShapes[] = {
    {96, 80, Format::kMxfp4},   {1000, 37, Format::kBF16},   {160, 96, Format::kFp8Row},
    {320, 144, Format::kNvfp4}, {2688, 400, Format::kNvfp4}, {2048, 160, Format::kBF16},
    {4096, 64, Format::kBF16},  {576, 128, Format::kBF16},   {320, 112, Format::kBF16}};

// Sums of tensor cores as in general_rows_gpu_test.cc. Of weights around zero, too.
void check(const Shape& shape, int64_t tokens, float offset) {
  Random random(static_cast<uint32_t>(tokens));
  const NormLinearDesc desc{shape.hidden, shape.width, shape.format, tokens};
  TestWeight w(random, shape.format, 1, shape.width, shape.hidden, /*has_bias=*/false);
  const std::vector<uint16_t> weight = random.bf16s(shape.hidden, 0.3f, 1 - offset);
  const Floats x(random, tokens, shape.hidden), d(random, tokens, shape.hidden);
  GpuProblem gpu(gpu::scratch_bytes(desc));
  for (const auto* row : kernels_here(norm_linear_kernels(), desc, gpu.cx.kernels)) {
    if (w.view.layout != row->layout) w.pack(row->layout);
    const NormLinearOut out{gpu.output(DType::kF32, {tokens, shape.width}),
                            gpu.output(DType::kBF16, {tokens, shape.hidden}),
                            gpu.output(DType::kF32, {tokens, shape.hidden})};
    row->run(gpu.cx, out, gpu.tensor(x, DType::kF32), gpu.tensor(d, DType::kF32),
             {gpu.array(weight), 1e-5f, offset}, gpu.weight(w));
    const Floats p = gpu.floats(out.p), h = gpu.floats(out.h), y = gpu.floats(out.y);
    const double e = 2 * static_cast<double>(shape.hidden + 16) * kEps;
    std::vector<float> want_h(shape.hidden), want_y(shape.hidden);
    for (int64_t t = 0; t < tokens; ++t) {
      ref::add(want_y.data(), x.row(t), d.row(t), shape.hidden);
      ref::rms_norm(DType::kBF16, want_h.data(), want_y.data(), {weight.data(), 1e-5f, offset},
                    shape.hidden);
      for (int64_t k = 0; k < shape.hidden; ++k) {
        ASSERT_EQ(y.at(t, k), want_y[k]) << row->name;
        ASSERT_NEAR(h.at(t, k), want_h[k],
                    norm_error(DType::kBF16, shape.hidden) * std::fabs(want_h[k]) + 1e-6)
            << row->name;
      }
      const std::vector<float> mine =
          multiplied_h(row->name, gpu.cx.kernels.gpu, shape.width, h.row(t), y.row(t),
                       {weight.data(), 1e-5f, offset}, shape.hidden);
      const std::vector<float> most = block_maxima(mine.data(), shape.hidden, 16);
      for (int64_t n = 0; n < shape.width; ++n) {
        double abs;
        const double want = ref::Row(w.view, 0, n).dot(mine.data(), &abs);
        double off = 0;  // activations are integers times at most 2^-13 of the largest of 16
        if (std::string_view(row->name).ends_with("_one"))
          ref::Row(w.view, 0, n).dot(most.data(), &off);
        ASSERT_NEAR(p.at(t, n), want, e * abs + 0x1p-14 * off + 1e-6)
            << row->name << " token " << t << " row " << n;
      }
    }
  }
}

TEST(NormLinearGpu, EveryKernelEqualsTheTwin) {
  for (const Shape& shape : kShapes)
    for (const int64_t tokens : {1, 2, 4, 7, 40}) {
      if (is_too_slow(shape.hidden * tokens)) continue;
      for (const float offset : {0.f, 1.f}) check(shape, tokens, offset);
    }
}

// One, few and many tokens of BF16 rows, which --exact chooses by their number.
TEST(NormLinearGpu, ATokensBitsDoNotDependOnTheOthers) {
  for (const int64_t hidden : {320, 576, 1024, 2048}) {
    constexpr int64_t kWidth = 80, kTokens = 7;
    Random random(3);
    TestWeight w(random, Format::kBF16, 1, kWidth, hidden, /*has_bias=*/false);
    const std::vector<uint16_t> weight = random.bf16s(hidden, 0.3f, 1);
    const Floats x(random, kTokens, hidden), d(random, kTokens, hidden);
    const auto first_of = [&](const Floats& of, int64_t tokens) {
      Floats rows(tokens, hidden);
      std::copy_n(of.values.begin(), tokens * hidden, rows.values.begin());
      return rows;
    };
    std::vector<float> want;  // of all
    for (int64_t tokens = kTokens; tokens > 0; --tokens) {
      const NormLinearDesc desc{hidden, kWidth, Format::kBF16, tokens};
      GpuProblem gpu(gpu::scratch_bytes(desc), /*exact=*/true);
      for (const auto* row : kernels_here(norm_linear_kernels(), desc, gpu.cx.kernels)) {
        if (!std::string_view(row->name).starts_with("cuda_bf16_")) continue;
        const NormLinearOut out{gpu.output(DType::kF32, {tokens, kWidth}),
                                gpu.output(DType::kBF16, {tokens, hidden}),
                                gpu.output(DType::kF32, {tokens, hidden})};
        row->run(gpu.cx, out, gpu.tensor(first_of(x, tokens), DType::kF32),
                 gpu.tensor(first_of(d, tokens), DType::kF32), {gpu.array(weight), 1e-5f, 0},
                 gpu.weight(w));
        const Floats p = gpu.floats(out.p);
        if (want.empty()) want.assign(p.row(0), p.row(0) + kTokens * kWidth);
        for (int64_t i = 0; i < tokens * kWidth; ++i)
          ASSERT_EQ(p.row(0)[i], want[i]) << row->name << " " << tokens << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace nibble::ops
