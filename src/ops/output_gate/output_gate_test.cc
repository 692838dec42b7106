#include "ops/output_gate/output_gate.h"

#include <gtest/gtest.h>

#include "ops/test_problem.h"

namespace nibble::ops {
namespace {

// A dozen roundings, and that of what is stored.
TEST(OutputGate, EveryKernelEqualsTheTwin) {
  for (const DType act : {DType::kF32, DType::kBF16})
    for (const int64_t width : {1, 16, 77, 512}) {
      const int64_t tokens = 5;
      Random random(static_cast<uint32_t>(width));
      const Floats att(random, tokens, width, act);
      Floats gate(random, tokens, width), want = att;
      gate.values[0] = -200, gate.values[1] = 200;
      TestCtx test(act, 0);
      ref::output_gate(test.cx, want.tensor(), gate.tensor());
      for (const OutputGateKernel* row : kernels_here(output_gate_kernels(), {.width = width})) {
        Floats got = att;
        row->run(test.cx, got.tensor(), gate.tensor());
        for (size_t i = 0; i < got.values.size(); ++i)
          ASSERT_NEAR(
              got.values[i], want.values[i],
              12 * kEps * std::fabs(want.values[i]) + 2 * store_error(act, want.values[i]) + 1e-30)
              << row->name << " " << i;
      }
    }
}

TEST(OutputGate, TheTwinByHand) {
  float att[] = {3, -2}, gate[] = {0, 1};
  TestCtx twin(DType::kF32, 0);
  ref::output_gate(twin.cx, make_tensor(att, DType::kF32, {1, 2}),
                   make_tensor(gate, DType::kF32, {1, 2}));
  EXPECT_EQ(att[0], 1.5f);
  EXPECT_NEAR(att[1], -2 / (1 + std::exp(-1.)), 1e-6);
}

}  // namespace
}  // namespace nibble::ops
