// Launches of the block-scaled GEMM with E4M3 activations; activations in E4M3.
#include "ops/gpu_matmul/e4m3_rows.cuh"
#include "ops/gpu_matmul/gemm_fp8_sm12x.cuh"
#include "ops/gpu_matmul/gemm_fp8_sm12x.h"

namespace nibble::ops::gpu::sm12x {
namespace {

constexpr int kThreads = 128;

// A block a row; bytes: 3 a value. A word of codes holds, for its p, b and h (gemm_fp8_sm12x.cuh),
// k, 16 + k, k + 1 and 17 + k.
__global__ void __launch_bounds__(kThreads)
    quantize(const E4m3Rows out, const uint16_t* x, int cols) {
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int64_t row = blockIdx.x;
  const float inverse = scale_row<kThreads>(out, x, cols);
  const auto* pairs = reinterpret_cast<const uint32_t*>(x + row * cols);
  auto* to = reinterpret_cast<uint32_t*>(out.codes + row * cols);
  for (int word = threadIdx.x; word < cols / 4; word += kThreads) {
    const int p = word / 4 % 4, b = word / 2 % 2, h = word % 2;
    const uint32_t low = pairs[(word / 16 * 64 + 32 * b + 8 * h + 2 * p) / 2];
    const uint32_t high = pairs[(word / 16 * 64 + 32 * b + 8 * h + 2 * p + 16) / 2];
    to[word] = cuda::e4m3_pair(cuda::bf16_lo(low) * inverse, cuda::bf16_lo(high) * inverse) |
               cuda::e4m3_pair(cuda::bf16_hi(low) * inverse, cuda::bf16_hi(high) * inverse) << 16;
  }
}

}  // namespace

E4m3Rows quantize_rows(Ctx& cx, Scratch& scratch, const uint16_t* x, int64_t rows, int64_t cols) {
  const E4m3Rows to = take_e4m3_rows(scratch, rows, cols);
  if (rows == 0) return to;
  cuda::launch(cx.stream, quantize,
               {.grid = dim3(static_cast<unsigned>(rows)),
                .block = dim3(kThreads),
                .release = cuda::Release::kAfterWait},
               to, x, static_cast<int>(cols));
  return to;
}

void gemm_fp8(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args) {
  switch (out) {
    case GemmOut::kSwiglu:
      return launch_fp8<GemmOut::kSwiglu, Body::kFast>(cx, w, args);
    case GemmOut::kBF16:
      return launch_fp8<GemmOut::kBF16, Body::kFast>(cx, w, args);
    case GemmOut::kF32:
      return launch_fp8<GemmOut::kF32, Body::kFast>(cx, w, args);
    case GemmOut::kQkv:
      return launch_fp8<GemmOut::kQkv, Body::kFast>(cx, w, args);
    case GemmOut::kSlices:
    case GemmOut::kRelu2:
      CHECK(false);
  }
}

void gemm_fp8(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x, int64_t tokens,
              float* y) {
  const E4m3Rows rows = quantize_rows(cx, scratch, x, tokens, w.cols);
  gemm_fp8(
      cx, w, GemmOut::kF32,
      {.x = rows.codes, .y = y, .num_slots = static_cast<int32_t>(tokens), .x_scale = rows.scales});
}

}  // namespace nibble::ops::gpu::sm12x
