#include <gtest/gtest.h>

#include "ops/gpu_matmul/gemv_gpu_test.h"
#include "ops/gpu_test_problem.h"
#include "ops/matmul_ref.h"
#include "ops/mlp_up/mlp_up.h"
#include "ops/norm_ref.h"

namespace nibble::ops {
namespace {

struct Shape {
  int64_t hidden, width;
  Format format;
};
constexpr Shape kShapes[] = {
    {96, 40, Format::kMxfp4},    {1000, 37, Format::kBF16},      {160, 96, Format::kMxfp8},
    {320, 72, Format::kNvfp4},   {4096, 200, Format::kNvfp4},    {320, 72, Format::kBF16},
    {320, 72, Format::kFp8Row},  {4096, 200, Format::kFp8Block}, {320, 72, Format::kMxfp8},
    {320, 72, Format::kInt4G32}, {4096, 200, Format::kInt4G128}};

// Sums of tensor cores as in general_rows_gpu_test.cc; u is rounded to bf16.
// Of the rows named "..." + `suffix`, Hopper's.
void check(const Shape& shape, int64_t tokens, const Swiglu& act, bool as_gb10 = false,
           std::string_view suffix = "") {
  Random random(static_cast<uint32_t>(tokens));
  const MlpUpDesc desc{shape.hidden, shape.width, shape.format, tokens, {}, act};
  TestWeight w(random, shape.format, 1, 2 * shape.width, shape.hidden, /*has_bias=*/false);
  const std::vector<uint16_t> weight = random.bf16s(shape.hidden, 0.3f, 1);
  const Floats x(random, tokens, shape.hidden), d(random, tokens, shape.hidden);
  GpuProblem gpu(gpu::scratch_bytes(desc));
  KernelOptions options = gpu.cx.kernels;
  if (!suffix.empty() && options.gpu.sm != 90) GTEST_SKIP() << "a Hopper GPU's";
  if (as_gb10) options.gpu = cuda::gb10(), options.any_size = true;  // those of its that run here
  int rows = 0;
  for (const auto* row : kernels_here(mlp_up_kernels(), desc, options)) {
    if (!std::string_view(row->name).ends_with(suffix)) continue;
    ++rows;
    if (w.view.layout != row->layout) w.pack(row->layout);
    const MlpUpOut out{gpu.output(DType::kBF16, {tokens, shape.width}),
                       gpu.output(DType::kBF16, {tokens, shape.hidden}),
                       gpu.output(DType::kF32, {tokens, shape.hidden})};
    row->run(gpu.cx, out, gpu.tensor(x, DType::kF32), gpu.tensor(d, DType::kF32),
             {gpu.array(weight), 1e-5f}, gpu.weight(w), act);
    const Floats u = gpu.floats(out.u), h = gpu.floats(out.h), y = gpu.floats(out.y);
    const double e =
        2 * static_cast<double>(shape.hidden + 16) * kEps + weight_error(shape.format, row->name);
    std::vector<float> want_h(shape.hidden), want_y(shape.hidden);
    for (int64_t t = 0; t < tokens; ++t) {
      ref::add(want_y.data(), x.row(t), d.row(t), shape.hidden);
      ref::rms_norm(DType::kBF16, want_h.data(), want_y.data(), {weight.data(), 1e-5f},
                    shape.hidden);
      for (int64_t k = 0; k < shape.hidden; ++k) {
        ASSERT_EQ(y.at(t, k), want_y[k]) << row->name;
        ASSERT_NEAR(h.at(t, k), want_h[k],
                    norm_error(DType::kBF16, shape.hidden) * std::fabs(want_h[k]))
            << row->name;
      }
      const std::vector<float> mine =
          multiplied_h(row->name, gpu.cx.kernels.gpu, 2 * shape.width, h.row(t), y.row(t),
                       {weight.data(), 1e-5f}, shape.hidden);
      const std::vector<float> most = block_maxima(mine.data(), shape.hidden, 16);
      for (int64_t j = 0; j < shape.width; j += row_step(shape.width)) {
        double gate_abs, up_abs;
        const double gate = ref::Row(w.view, 0, 2 * j).dot(mine.data(), &gate_abs);
        const double up = ref::Row(w.view, 0, 2 * j + 1).dot(mine.data(), &up_abs);
        if (std::string_view(row->name).ends_with("_one")) {
          // Activations are integers times at most 2^-13 of the largest of 16 k.
          double gate_off, up_off;
          ref::Row(w.view, 0, 2 * j).dot(most.data(), &gate_off);
          ref::Row(w.view, 0, 2 * j + 1).dot(most.data(), &up_off);
          gate_abs += 0x1p-14 * gate_off / e, up_abs += 0x1p-14 * up_off / e;
        }
        const double want = ref::swiglu(gate, up, act);
        ASSERT_NEAR(u.at(t, j), want,
                    swiglu_error(gate, e * gate_abs, up, e * up_abs, act) +
                        0x1p-20 * std::fabs(want) + store_error(DType::kBF16, want) + 1e-6)
            << row->name << " token " << t << " column " << j;
      }
    }
  }
  EXPECT_GT(rows, 0) << suffix;
}

TEST(MlpUpGpu, EveryKernelEqualsTheTwin) {
  for (const Shape& shape : kShapes)
    for (const int64_t tokens : {1, 7, 40}) {
      if (is_too_slow(shape.hidden * tokens)) continue;
      check(shape, tokens, {});
      check(shape, tokens, kClampedSwiglu);
      check(shape, tokens, {}, /*as_gb10=*/true);
    }
}

// Matrices whose blocks fill the GPU once, of 192 rows or of 256, the last of them whole or not; of
// more K than a block has room for.
TEST(MlpUpGpu, StreamEqualsTheTwin) {
  constexpr struct {
    int64_t hidden, width, tokens;
  } kProblems[] = {{2304, 12264, 9},  {2304, 12264, 30}, {1280, 12264, 64}, {2304, 14328, 16},
                   {2304, 14328, 30}, {1280, 14328, 64}, {256, 14336, 33}};
  for (const auto& [hidden, width, tokens] : kProblems)
    if (!is_too_slow(hidden * tokens))
      check({hidden, width, Format::kNvfp4}, tokens, kClampedSwiglu, /*as_gb10=*/false, "_stream");
}

// As many row tiles to a block that their sums are added up in rounds, parts of K that overlap, and
// shares of it.
TEST(MlpUpGpu, F16EqualsTheTwin) {
  constexpr struct {
    int64_t hidden, width, tokens;
  } kProblems[] = {{2304, 12264, 8}, {1280, 14336, 2}, {4096, 200, 5}, {5120, 4200, 3}};
  for (const auto& [hidden, width, tokens] : kProblems)
    if (!is_too_slow(hidden * tokens))
      check({hidden, width, Format::kNvfp4}, tokens, kClampedSwiglu, /*as_gb10=*/false, "_f16");
}

// What streams, of BF16 rows: Llama-3.1-8B's, and last blocks that are not whole.
TEST(MlpUpGpu, StreamOfRowsEqualsTheTwin) {
  constexpr struct {
    int64_t hidden, width, tokens;
  } kProblems[] = {{1280, 14336, 64}, {2304, 12264, 9}, {320, 72, 30}, {256, 14328, 17}};
  for (const auto& [hidden, width, tokens] : kProblems)
    if (!is_too_slow(hidden * tokens))
      check({hidden, width, Format::kBF16}, tokens, kClampedSwiglu, /*as_gb10=*/false, "_stream");
}

// Prompts that are multiplied in parts.
TEST(MlpUpGpu, PartsOfAPromptEqualTheTwin) {
  if (is_too_slow(64 * 3101)) return;
  check({64, 2056, Format::kNvfp4}, 3101, kClampedSwiglu, /*as_gb10=*/false, "sm90_nvfp4_gemm");
  check({64, 2056, Format::kBF16}, 3101, kClampedSwiglu, /*as_gb10=*/false, "sm90_bf16_gemm");
}

}  // namespace
}  // namespace nibble::ops
