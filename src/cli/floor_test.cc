#include "cli/floor.h"

#include <gtest/gtest.h>

#include "models/step_work.h"

namespace nibble::cli {
namespace {

TEST(Floor, IsTheLargerOfBytesAndProducts) {
  const DeviceRates rates = device_rates(cuda::h200(), 4e12);
  EXPECT_DOUBLE_EQ(floor_seconds(4'000'000, 1, "cuda_w4a16_decode", rates), 1e-6);
  EXPECT_DOUBLE_EQ(floor_seconds(1, 790'000'000, "sm90_w4a16_gemm", rates), 1e-6);
  for (const char* fp8 : {"sm90_w4a8_gemm", "sm90_w8a8_gemm", "sm90_nvfp4a8_gemm"})
    EXPECT_DOUBLE_EQ(floor_seconds(1, 1'450'000'000, fp8, rates), 1e-6) << fp8;
}

// 48 SMs at 2.4 GHz: 118, 236 and 472 TFLOP/s.
TEST(Floor, OfAGb10IsByTheRateOfEachFormat) {
  const DeviceRates rates = device_rates(cuda::gb10(), 2e11);
  EXPECT_DOUBLE_EQ(floor_seconds(200, 1, "cuda_w4a16_decode", rates), 1e-9);
  const auto us = [&](const char* kernel) { return 1e6 * floor_seconds(1, 1e9, kernel, rates); };
  EXPECT_NEAR(us("cuda_w4a16_gemm"), 1e3 / 118, 0.01);
  for (const char* fp8 : {"sm121_w4a8_gemm", "sm121_w8a8_gemm", "sm121_nvfp4a8_gemm"})
    EXPECT_NEAR(us(fp8), 1e3 / 236, 0.01) << fp8;
  for (const char* fp4 : {"sm121_w4a4_gemm", "sm121_nvfp4a4_gemm"})
    EXPECT_NEAR(us(fp4), 1e3 / 472, 0.01) << fp4;
}

// 8,192 tokens by hand: 9.1 GFLOP a token by matrices at 1,450 or 790 TFLOP/s, 51 or 94 ms;
// attention, 18 layers of 8192^2 / 2 pairs and 18 of 128 a token, times 4 x 4,096, 10.2 TFLOP at
// 790, 13 ms; norms and router, 36 x 2 x 8192 x 2880 x 14 bytes at 4.55 TB/s, 5 ms, of which qkv's
// product hides half; 67 or 109 ms.
TEST(Floor, OfAPromptIsArithmetic) {
  const DeviceRates rates = device_rates(cuda::h200(), 4.55e12);
  constexpr DenseFormats kMxfp4 = {Format::kMxfp4, Format::kMxfp4, Format::kMxfp4};
  const auto seconds = [&](bool is_fp8) {
    double sum = 0;
    for (const OpWork& op :
         describe_step_work("openai/gpt-oss-120b", kMxfp4, {.tokens = 8192, .act_bytes = 2}))
      sum += floor_seconds(op.bytes, op.flops,
                           is_fp8 && op.weights == Format::kMxfp4 ? "sm90_w4a8_gemm" : "cuda_any",
                           rates);
    return sum;
  };
  EXPECT_NEAR(seconds(true), 67e-3, 2e-3);
  EXPECT_NEAR(seconds(false), 109e-3, 2e-3);
}

}  // namespace
}  // namespace nibble::cli
