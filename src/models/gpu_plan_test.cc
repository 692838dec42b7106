// Kernels chosen for GPUs that are not here: every op of gpt-oss has one for steps of every size,
// on an H200 and on a GB10, with and without --exact.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "models/model.h"

namespace nibble {
namespace {

ops::Ctx on_gpu(const cuda::Caps& gpu, bool exact) {
  ops::Ctx cx;
  cx.kernels.gpu = gpu;
  cx.kernels.exact = exact;
  cx.kernels.activations = ops::ActFormat::kBF16;
  return cx;
}

using Case = std::tuple<bool, Format, bool>;  // is GB10, dense format, exact

class GpuPlan : public testing::TestWithParam<Case> {};

TEST_P(GpuPlan, HasAKernelForEveryOpAndSize) {
  const auto [is_gb10, dense, exact] = GetParam();
  const ops::Ctx cx = on_gpu(is_gb10 ? cuda::gb10() : cuda::h200(), exact);
  const ops::KernelPlan plan =
      plan_kernels(cx, "openai/gpt-oss-120b", {.qkv = dense, .out = dense, .unembed = dense});
  int64_t next = 1;  // entries of one op and layer follow one another without a gap
  for (const ops::PlanEntry& entry : plan.entries()) {
    EXPECT_EQ(entry.min_tokens, next) << ops::op_name(entry.op) << " of layer " << entry.layer;
    next = entry.max_tokens == ops::kTokenBuckets.back() ? 1 : entry.max_tokens + 1;
    const std::string& name = entry.kernel;
    EXPECT_TRUE(name.starts_with("cuda_") || name.starts_with(is_gb10 ? "sm121_" : "sm90_"))
        << name;
  }
  EXPECT_EQ(next, 1);
  // One resident copy of the experts serves every size of step.
  for (const ops::Op op : {ops::Op::kMoeUp, ops::Op::kMoeDown})
    EXPECT_EQ(plan.layout(op, 0), Layout::kTiles16x64);
}

INSTANTIATE_TEST_SUITE_P(Machines, GpuPlan,
                         testing::Combine(testing::Bool(),
                                          testing::Values(Format::kBF16, Format::kMxfp4),
                                          testing::Bool()));

}  // namespace
}  // namespace nibble
