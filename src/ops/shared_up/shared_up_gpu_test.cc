#include <gtest/gtest.h>

#include "ops/gpu_matmul/gemv_gpu_test.h"
#include "ops/gpu_test_problem.h"
#include "ops/matmul_ref.h"
#include "ops/shared_up/shared_up.h"

namespace nibble::ops {
namespace {

struct Shape {
  int64_t hidden, width;
  Format format;
};
constexpr Shape kShapes[] = {{96, 40, Format::kMxfp4},    {1000, 37, Format::kBF16},
                             {160, 96, Format::kFp8Row},  {320, 72, Format::kNvfp4},
                             {2048, 512, Format::kNvfp4}, {320, 72, Format::kBF16}};

// Sums of tensor cores as in general_rows_gpu_test.cc; the sigmoid moves by a quarter of its
// argument's error and __expf's, 2^-20; u is rounded to bf16.
void check(const Shape& shape, int64_t tokens) {
  Random random(static_cast<uint32_t>(tokens));
  const SharedUpDesc desc{shape.hidden, shape.width, shape.format, tokens};
  TestWeight w(random, shape.format, 1, 2 * shape.width, shape.hidden, /*has_bias=*/false);
  const std::vector<uint16_t> gate_of =
      random.bf16s(shape.hidden, 1 / std::sqrt(static_cast<float>(shape.hidden)));
  const Floats h(random, tokens, shape.hidden, DType::kBF16);
  GpuProblem gpu(gpu::scratch_bytes(desc));
  const double e = 2 * static_cast<double>(shape.hidden + 16) * kEps;
  for (const auto* row : kernels_here(shared_up_kernels(), desc, gpu.cx.kernels)) {
    if (w.view.layout != row->layout) w.pack(row->layout);
    const Tensor out = gpu.output(DType::kBF16, {tokens, shape.width});
    row->run(gpu.cx, out, gpu.tensor(h, DType::kBF16), gpu.weight(w), gpu.array(gate_of), {});
    const Floats u = gpu.floats(out);
    for (int64_t t = 0; t < tokens; ++t) {
      double logit = 0, logit_abs = 0;
      for (int64_t i = 0; i < shape.hidden; ++i) {
        const double term = double{h.at(t, i)} * bf16_to_float(gate_of[i]);
        logit += term, logit_abs += std::fabs(term);
      }
      const double p = 1 / (1 + std::exp(-logit)), p_error = e * logit_abs / 4 + 0x1p-20;
      const std::vector<float> most = block_maxima(h.row(t), shape.hidden, 16);
      for (int64_t j = 0; j < shape.width; ++j) {
        double gate_abs, up_abs;
        const ref::Row gate_row(w.view, 0, 2 * j), up_row(w.view, 0, 2 * j + 1);
        const double gate = gate_row.dot(h.row(t), &gate_abs), up = up_row.dot(h.row(t), &up_abs);
        if (std::string_view(row->name).ends_with("_one")) {
          // Activations are integers times at most 2^-13 of the largest of 16 k.
          double gate_off, up_off;
          gate_row.dot(most.data(), &gate_off), up_row.dot(most.data(), &up_off);
          gate_abs += 0x1p-14 * gate_off / e, up_abs += 0x1p-14 * up_off / e;
        }
        const double of = ref::swiglu(gate, up, {});
        ASSERT_NEAR(u.at(t, j), p * of,
                    p * swiglu_error(gate, e * gate_abs, up, e * up_abs, {}) +
                        (2 * p_error + 0x1p-20) * std::fabs(of) +
                        store_error(DType::kBF16, p * of) + 1e-6)
            << row->name << " token " << t << " column " << j;
      }
    }
  }
}

TEST(SharedUpGpu, EveryKernelEqualsTheTwin) {
  for (const Shape& shape : kShapes)
    for (const int64_t tokens : {1, 7, 40})
      if (!is_too_slow(shape.hidden * tokens)) check(shape, tokens);
}

}  // namespace
}  // namespace nibble::ops
