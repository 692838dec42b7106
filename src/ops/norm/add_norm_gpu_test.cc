#include "ops/norm/add_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/gpu_test_problem.h"

namespace nibble::ops {
namespace {

// Where column k of a row of E4M3 lies: E4M3 order, see gemm_fp8_sm90.cuh.
int64_t place(int64_t k) { return k / 32 * 32 + k % 2 * 16 + k % 8 / 2 * 4 + k % 32 / 8; }

// Codes and scales are those of the bf16 row left beside them: the same bits as on the host, where
// products and roundings are the same.
TEST(AddNormGpu, LeavesItsRowsInE4m3Too) {
  for (const int64_t hidden : {32, 2880, 4096}) {
    Random random(static_cast<uint32_t>(hidden));
    constexpr int64_t kTokens = 5;
    const Floats x(random, kTokens, hidden), d(random, kTokens, hidden);
    const std::vector<uint16_t> weight = random.bf16s(hidden);
    GpuProblem gpu;
    const Tensor y = gpu.output(DType::kF32, {kTokens, hidden});
    const Tensor h = gpu.output(DType::kBF16, {kTokens, hidden});
    const Tensor scales = gpu.output(DType::kF32, {kTokens, 1});
    const Tensor codes = gpu.output(DType::kBF16, {kTokens, hidden / 2});  // as bytes
    gpu::add_norm(gpu.cx, {.y = y.as<float>(),
                           .h = h.as<uint16_t>(),
                           .x = gpu.tensor(x, DType::kF32).as<float>(),
                           .d = gpu.tensor(d, DType::kF32).as<float>(),
                           .norm = {gpu.array(weight), 1e-5f},
                           .tokens = kTokens,
                           .hidden = hidden,
                           .e4m3 = {static_cast<uint8_t*>(codes.data), scales.as<float>()}});
    const Floats rows = gpu.floats(h), got_scales = gpu.floats(scales);
    const auto got = gpu.values<uint8_t>(codes.data, kTokens * hidden);
    for (int64_t t = 0; t < kTokens; ++t) {
      float largest = 0;
      for (int64_t k = 0; k < hidden; ++k) largest = std::fmax(largest, std::fabs(rows.at(t, k)));
      const E4m3Scale want = e4m3_scale(largest);
      EXPECT_EQ(got_scales.at(t, 0), want.scale);
      for (int64_t k = 0; k < hidden; ++k)
        ASSERT_EQ(got[t * hidden + place(k)], e4m3_from_float(rows.at(t, k) * want.inverse))
            << "token " << t << " column " << k << " of " << hidden;
    }
  }
}

}  // namespace
}  // namespace nibble::ops
