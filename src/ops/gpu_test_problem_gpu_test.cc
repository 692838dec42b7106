#include "ops/gpu_test_problem.h"

#include <gtest/gtest.h>

namespace nibble::ops {
namespace {

TEST(GpuProblem, BringsBackWhatItTook) {
  Random random(1);
  GpuProblem gpu(1000);
  const Floats from(random, 3, 40);
  EXPECT_EQ(gpu.floats(gpu.tensor(from, DType::kF32)).values, from.values);
  const Floats rounded = gpu.floats(gpu.tensor(from, DType::kBF16));
  for (size_t i = 0; i < from.values.size(); ++i)
    EXPECT_EQ(rounded.values[i], bf16_to_float(bf16_from_float(from.values[i])));

  TestRouting routing(5, 8, 2), back(5, 8, 2);
  routing.randomize(random);
  gpu.read_back(back, gpu.routing(routing));
  EXPECT_EQ(back.ids, routing.ids);
  EXPECT_EQ(back.offsets, routing.offsets);
  gpu.read_back(back, gpu.routing_output(routing));
  EXPECT_EQ(back.slot, std::vector<int32_t>(10, -1));
  for (const float v : gpu.floats(gpu.output(DType::kBF16, {2, 8})).values)
    EXPECT_TRUE(std::isnan(v));
  EXPECT_TRUE(gpu.counters_are_zero());
}

}  // namespace
}  // namespace nibble::ops
