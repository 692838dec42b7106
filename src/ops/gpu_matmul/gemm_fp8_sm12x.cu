// Launches of the block-scaled GEMM with E4M3 activations; activations in E4M3.
#include "ops/gpu_matmul/e4m3_rows.cuh"
#include "ops/gpu_matmul/gemm_fp8_sm12x.cuh"
#include "ops/gpu_matmul/gemm_fp8_sm12x.h"
#include "ops/gpu_matmul/lane_order.h"

namespace nibble::ops::gpu::sm12x {
namespace {

constexpr int kThreads = 128;

// A block a row; bytes: 3 a value.
__global__ void __launch_bounds__(kThreads)
    quantize(const E4m3Rows out, const uint16_t* x, int cols, Format weights) {
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int64_t row = blockIdx.x;
  const float inverse = scale_row<kThreads>(out, x, cols);
  auto* to = reinterpret_cast<uint32_t*>(out.codes + row * cols);
  for (int word = threadIdx.x; word < cols / 4; word += kThreads) {
    const uint16_t* from = x + row * cols + word / 16 * 64;
    float v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      v[j] = cuda::bf16_value(from[column_of_place(weights, word % 16 * 4 + j)]) * inverse;
    to[word] = cuda::e4m3_pair(v[0], v[1]) | cuda::e4m3_pair(v[2], v[3]) << 16;
  }
}

}  // namespace

E4m3Rows quantize_rows(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x,
                       int64_t rows) {
  const E4m3Rows to = take_e4m3_rows(scratch, rows, w.cols);
  if (rows == 0) return to;
  cuda::launch(cx.stream, quantize,
               {.grid = dim3(static_cast<unsigned>(rows)),
                .block = dim3(kThreads),
                .release = cuda::Release::kAfterWait},
               to, x, static_cast<int>(w.cols), w.format);
  return to;
}

void gemm_fp8(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args) {
  if (w.format == Format::kNvfp4) return gemm_nvfp4a8(cx, w, out, args);
  if (w.format != Format::kMxfp4) return gemm_w8a8(cx, w, out, args);
  switch (out) {
    case GemmOut::kSwiglu:
      return launch_fp8<Fp8Shape<Format::kMxfp4, GemmOut::kSwiglu>>(cx, w, args);
    case GemmOut::kBF16:
      return launch_fp8<Fp8Shape<Format::kMxfp4, GemmOut::kBF16>>(cx, w, args);
    case GemmOut::kF32:
      return launch_fp8<Fp8Shape<Format::kMxfp4, GemmOut::kF32>>(cx, w, args);
    case GemmOut::kQkv:
      return launch_fp8<Fp8Shape<Format::kMxfp4, GemmOut::kQkv>>(cx, w, args);
    case GemmOut::kSlices:
    case GemmOut::kRelu2:
      CHECK(false);
  }
}

void gemm_fp8(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x, int64_t tokens,
              float* y) {
  const E4m3Rows rows = quantize_rows(cx, scratch, w, x, tokens);
  gemm_fp8(
      cx, w, GemmOut::kF32,
      {.x = rows.codes, .y = y, .num_slots = static_cast<int32_t>(tokens), .x_scale = rows.scales});
}

}  // namespace nibble::ops::gpu::sm12x
