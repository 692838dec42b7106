// Launches of the wgmma GEMM with E4M3 activations; activations in E4M3.
#include "cuda/fp8.cuh"
#include "ops/gpu_matmul/e4m3_rows.cuh"
#include "ops/gpu_matmul/gemm_fp8_sm90.cuh"
#include "ops/gpu_matmul/gemm_fp8_sm90.h"
#include "ops/gpu_matmul/gemm_items.h"
#include "ops/site.h"

namespace nibble::ops::gpu {
namespace {

constexpr int kThreads = 128;

// A block a row; a thread takes every 128th block of 32 columns. Bytes: 3 a value.
__global__ void __launch_bounds__(kThreads)
    quantize(const E4m3Rows out, const uint16_t* x, int cols) {
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int64_t row = blockIdx.x;
  const float inverse = scale_row<kThreads>(out, x, cols);
  // A word of codes: columns 8 i + 2 p + o, i = 0..3, for p = word % 4 and o = word / 4 of 8.
  auto* to = reinterpret_cast<uint32_t*>(out.codes + row * cols);
  for (int word = threadIdx.x; word < cols / 4; word += kThreads) {
    const uint16_t* v = x + row * cols + word / 8 * 32 + word % 4 * 2 + word / 4 % 2;
    const uint32_t low =
        cuda::e4m3_pair(cuda::bf16_value(v[0]) * inverse, cuda::bf16_value(v[8]) * inverse);
    const uint32_t high =
        cuda::e4m3_pair(cuda::bf16_value(v[16]) * inverse, cuda::bf16_value(v[24]) * inverse);
    to[word] = low | high << 16;
  }
}

template <typename Shape>
void launch(Ctx& cx, sm90::Fp8Params params) {
  const int blocks = cx.kernels.gpu.num_sms;
  params.max_n = slots_of_item<Shape>(params, blocks);
  cuda::launch(cx.stream, sm90::fp8_gemm_kernel<Shape>,
               {.grid = dim3(static_cast<unsigned>(blocks)),
                .block = dim3(Shape::kThreads),
                .smem_bytes = Shape::kBytes,
                .release = cuda::Release::kAfterWait},
               params);
}

template <Format kFormat, GemmOut kOut>
void launch_experts(Ctx& cx, const sm90::Fp8Params& params) {
  if (has_wide_items(params)) return launch<sm90::Fp8Many<kFormat, kOut>>(cx, params);
  launch<sm90::Fp8Some<kFormat, kOut>>(cx, params);
}

}  // namespace

const uint8_t* row_exponents_of(const Ctx& cx) {
  CHECK(cx.site != nullptr && cx.site->row_exponents != nullptr);
  return cx.site->row_exponents;
}

E4m3Rows quantize_rows(Ctx& cx, Scratch& scratch, const uint16_t* x, int64_t rows, int64_t cols) {
  const E4m3Rows to = take_e4m3_rows(scratch, rows, cols);
  cuda::launch(cx.stream, quantize,
               {.grid = dim3(static_cast<unsigned>(rows)),
                .block = dim3(kThreads),
                .release = cuda::Release::kAfterWait},
               to, x, static_cast<int>(cols));
  return to;
}

void gemm_fp8(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args) {
  if (args.num_slots == 0) return;
  sm90::Fp8Params params{sm90::gemm_params(w, args), w.codes};
  if (w.format == Format::kFp8Row) {
    CHECK(w.experts == 1);
    if (out == GemmOut::kSwiglu)
      return launch<sm90::Fp8Many<Format::kFp8Row, GemmOut::kSwiglu>>(cx, params);
    CHECK(out == GemmOut::kF32);
    return launch<sm90::Fp8Many<Format::kFp8Row, GemmOut::kF32>>(cx, params);
  }
  if (w.format == Format::kNvfp4) {
    if (out == GemmOut::kF32)
      return launch<sm90::Fp8Many<Format::kNvfp4, GemmOut::kF32>>(cx, params);
    if (out == GemmOut::kBF16) return launch_experts<Format::kNvfp4, GemmOut::kBF16>(cx, params);
    CHECK(out == GemmOut::kSwiglu);
    return launch_experts<Format::kNvfp4, GemmOut::kSwiglu>(cx, params);
  }
  CHECK(w.format == Format::kMxfp4);
  params.row_exponents = row_exponents_of(cx);
  switch (out) {
    case GemmOut::kSwiglu:
      return launch_experts<Format::kMxfp4, GemmOut::kSwiglu>(cx, params);
    case GemmOut::kBF16:
      return launch_experts<Format::kMxfp4, GemmOut::kBF16>(cx, params);
    case GemmOut::kF32:
      return launch<sm90::Fp8Many<Format::kMxfp4, GemmOut::kF32>>(cx, params);
    case GemmOut::kQkv:
      return launch<sm90::Fp8Many<Format::kMxfp4, GemmOut::kQkv>>(cx, params);
    case GemmOut::kSlices:
    case GemmOut::kRelu2:
      CHECK(false);
  }
}

void gemm_fp8(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x, int64_t tokens,
              float* y) {
  if (tokens == 0) return;
  const E4m3Rows rows = quantize_rows(cx, scratch, x, tokens, w.cols);
  gemm_fp8(
      cx, w, GemmOut::kF32,
      {.x = rows.codes, .y = y, .num_slots = static_cast<int32_t>(tokens), .x_scale = rows.scales});
}

}  // namespace nibble::ops::gpu
