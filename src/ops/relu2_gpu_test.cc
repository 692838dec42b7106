// moe_up, shared_up and mlp_up without a gate on a GPU: u = max(h W^T, 0)^2.
#include <gtest/gtest.h>

#include "ops/gpu_matmul/gemv_gpu_test.h"
#include "ops/gpu_test_problem.h"
#include "ops/matmul_ref.h"
#include "ops/mlp_up/mlp_up.h"
#include "ops/moe_up/moe_up.h"
#include "ops/shared_up/shared_up.h"

namespace nibble::ops {
namespace {

struct Shape {
  int64_t hidden, width;
  Format format;
};
constexpr Shape kShapes[] = {
    {96, 40, Format::kMxfp4},    {1000, 37, Format::kBF16},   {160, 96, Format::kFp8Row},
    {320, 80, Format::kFp8Row},  {320, 72, Format::kNvfp4},   {320, 80, Format::kNvfp4},
    {2688, 80, Format::kNvfp4},  {320, 128, Format::kNvfp4},  {320, 80, Format::kBF16},
    {320, 72, Format::kInt4G32}, {384, 80, Format::kInt4G128}};

// Sums of tensor cores as in general_rows_gpu_test.cc, digits as in mlp_up_gpu_test.cc.
void expect_relu2(const char* name, float got, const ref::Row& row, const float* h,
                  const Shape& s) {
  const std::string_view kernel(name);
  double abs, off;
  double y = row.dot(h, &abs);
  const double want = y > 0 ? y * y : 0;
  row.dot(block_maxima(h, s.hidden, 16).data(), &off);
  const double e =
      kernel.ends_with("_narrow")
          ? narrow_error(row, h, s.hidden, &y)
          : (2 * static_cast<double>(s.hidden + 16) * kEps + weight_error(s.format, name)) * abs +
                (kernel.ends_with("_one") ? 0x1p-14 * off : 0);
  ASSERT_NEAR(got, want, 2 * std::fabs(y) * e + e * e + store_error(DType::kBF16, want) + 1e-6)
      << name;
}

KernelOptions options_of(const GpuProblem& gpu, bool as_gb10) {
  KernelOptions options = gpu.cx.kernels;
  options.any_size = true;
  if (as_gb10) options.gpu = cuda::gb10();  // those of its that run here
  return options;
}

void check_experts(const Shape& s, int64_t tokens, bool as_gb10) {
  constexpr int64_t kExperts = 6, kTopK = 3;
  Random random(static_cast<uint32_t>(tokens));
  TestWeight w(random, s.format, kExperts, s.width, s.hidden, /*has_bias=*/false);
  const Floats h(random, tokens, s.hidden, DType::kBF16);
  TestRouting routing(tokens, kExperts, kTopK);
  routing.randomize(random);
  const MoeUpDesc desc{s.hidden, s.width, kExperts, kTopK, s.format, tokens, {}, kRelu2};
  GpuProblem gpu(gpu::scratch_bytes(desc));
  for (const auto* row : kernels_here(moe_up_kernels(), desc, options_of(gpu, as_gb10))) {
    if (w.view.layout != row->layout) w.pack(row->layout);
    const Tensor u = gpu.output(DType::kBF16, {tokens * kTopK, s.width});
    row->run(gpu.cx, u, gpu.tensor(h, DType::kBF16), gpu.routing(routing), gpu.weight(w), kRelu2);
    const Floats got = gpu.floats(u);
    for (int64_t j = 0; j < s.width; ++j)
      for (int64_t e = 0; e < kExperts; ++e) {
        const ref::Row column(w.view, e, j);
        for (int64_t i = 0; i < tokens * kTopK; ++i)
          if (routing.ids[i] == e)
            expect_relu2(row->name, got.at(routing.slot[i], j), column, h.row(i / kTopK), s);
      }
  }
}

void check_shared(const Shape& s, int64_t tokens) {
  Random random(static_cast<uint32_t>(tokens));
  TestWeight w(random, s.format, 1, s.width, s.hidden, /*has_bias=*/false);
  const Floats h(random, tokens, s.hidden, DType::kBF16);
  const SharedUpDesc desc{s.hidden, s.width, s.format, tokens, {}, kRelu2};
  GpuProblem gpu(gpu::scratch_bytes(desc));
  for (const auto* row : kernels_here(shared_up_kernels(), desc, options_of(gpu, false))) {
    if (w.view.layout != row->layout) w.pack(row->layout);
    const Tensor u = gpu.output(DType::kBF16, {tokens, s.width});
    row->run(gpu.cx, u, gpu.tensor(h, DType::kBF16), gpu.weight(w), /*gate=*/nullptr, kRelu2);
    const Floats got = gpu.floats(u);
    for (int64_t j = 0; j < s.width; ++j) {
      const ref::Row column(w.view, 0, j);
      for (int64_t t = 0; t < tokens; ++t)
        expect_relu2(row->name, got.at(t, j), column, h.row(t), s);
    }
  }
}

// The norm is mlp_up_gpu_test.cc's; its h is taken as it is.
void check_mlp(const Shape& s, int64_t tokens) {
  Random random(static_cast<uint32_t>(tokens));
  TestWeight w(random, s.format, 1, s.width, s.hidden, /*has_bias=*/false);
  const std::vector<uint16_t> weight = random.bf16s(s.hidden, 0.3f, 1);
  const Floats x(random, tokens, s.hidden), d(random, tokens, s.hidden);
  const MlpUpDesc desc{s.hidden, s.width, s.format, tokens, {}, kRelu2};
  GpuProblem gpu(gpu::scratch_bytes(desc));
  for (const auto* row : kernels_here(mlp_up_kernels(), desc, options_of(gpu, false))) {
    if (w.view.layout != row->layout) w.pack(row->layout);
    const MlpUpOut out{gpu.output(DType::kBF16, {tokens, s.width}),
                       gpu.output(DType::kBF16, {tokens, s.hidden}),
                       gpu.output(DType::kF32, {tokens, s.hidden})};
    row->run(gpu.cx, out, gpu.tensor(x, DType::kF32), gpu.tensor(d, DType::kF32),
             {gpu.array(weight), 1e-5f}, gpu.weight(w), kRelu2);
    const Floats u = gpu.floats(out.u), h = gpu.floats(out.h);
    for (int64_t j = 0; j < s.width; ++j) {
      const ref::Row column(w.view, 0, j);
      for (int64_t t = 0; t < tokens; ++t) expect_relu2(row->name, u.at(t, j), column, h.row(t), s);
    }
  }
}

TEST(Relu2Gpu, EveryKernelEqualsTheProduct) {
  for (const Shape& shape : kShapes)
    for (const int64_t tokens : {1, 7, 40}) {
      if (is_too_slow(shape.hidden * tokens)) continue;
      check_experts(shape, tokens, /*as_gb10=*/false);
      check_experts(shape, tokens, /*as_gb10=*/true);
      check_shared(shape, tokens);
      check_mlp(shape, tokens);
    }
}

}  // namespace
}  // namespace nibble::ops
