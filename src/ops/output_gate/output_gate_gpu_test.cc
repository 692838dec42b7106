#include <gtest/gtest.h>

#include "ops/gpu_test_problem.h"
#include "ops/output_gate/output_gate.h"

namespace nibble::ops {
namespace {

TEST(OutputGateGpu, EveryKernelEqualsTheTwin) {
  for (const int64_t width : {1, 77, 4096}) {
    const int64_t tokens = 5;
    Random random(static_cast<uint32_t>(width));
    const Floats att(random, tokens, width, DType::kBF16);
    Floats gate(random, tokens, width), want = att;
    gate.values[0] = -200, gate.values[1] = 200;
    TestCtx twin(DType::kF32, 0);
    ref::output_gate(twin.cx, want.tensor(), gate.tensor());
    GpuProblem gpu;
    for (const auto* row :
         kernels_here(output_gate_kernels(), {.width = width, .tokens = tokens}, gpu.cx.kernels)) {
      const Tensor got = gpu.tensor(att, DType::kBF16);
      row->run(gpu.cx, got, gpu.tensor(gate, DType::kF32));
      const Floats out = gpu.floats(got);
      for (size_t i = 0; i < want.values.size(); ++i)
        ASSERT_NEAR(
            out.values[i], want.values[i],
            0x1p-20 * std::fabs(want.values[i]) + store_error(DType::kBF16, want.values[i]) + 1e-30)
            << row->name << " " << i;
    }
  }
}

}  // namespace
}  // namespace nibble::ops
