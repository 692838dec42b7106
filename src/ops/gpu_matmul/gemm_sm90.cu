// Launches of the wgmma GEMM.
#include "ops/gpu_matmul/gemm_items.h"
#include "ops/gpu_matmul/gemm_sm90.cuh"

namespace nibble::ops::gpu {
namespace {

template <GemmWeights kWeights, GemmOut kOut, bool kWide>
void launch(Ctx& cx, sm90::GemmParams params) {
  using Shape = sm90::GemmShape<kWeights, kOut, kWide>;
  const int blocks = cx.kernels.gpu.num_sms;
  params.max_n = slots_of_item<Shape>(params, blocks);
  cuda::launch(cx.stream, sm90::gemm_kernel<Shape>,
               {.grid = dim3(static_cast<unsigned>(blocks)),
                .block = dim3(Shape::kThreads),
                .smem_bytes = Shape::kBytes,
                .release = cuda::Release::kAfterWait},
               params);
}

template <GemmWeights kWeights, GemmOut kOut>
void launch_tiles(Ctx& cx, const sm90::GemmParams& params, bool is_wide) {
  if (is_wide)
    launch<kWeights, kOut, true>(cx, params);
  else
    launch<kWeights, kOut, false>(cx, params);
}

template <GemmWeights kWeights>
void launch_tiles(Ctx& cx, const sm90::GemmParams& params, GemmOut out) {
  const bool is_wide = has_wide_items(params);
  switch (out) {
    case GemmOut::kSwiglu:
      return launch_tiles<kWeights, GemmOut::kSwiglu>(cx, params, is_wide);
    case GemmOut::kBF16:
      return launch_tiles<kWeights, GemmOut::kBF16>(cx, params, is_wide);
    case GemmOut::kF32:
      return launch_tiles<kWeights, GemmOut::kF32>(cx, params, params.num_slots > 128);
    case GemmOut::kQkv:
      if constexpr (kWeights == GemmWeights::kTiles)
        return launch<kWeights, GemmOut::kQkv, true>(cx, params);
      CHECK(false && "heads of NVFP4 are turned behind the product");
      return;
    case GemmOut::kSlices:
      CHECK(false && "gemm_slices() cuts them");
  }
}

// y [T, N] = the slices' sums in order. Bytes: 4 N (slices + 1) a token, from L2.
constexpr int kAddThreads = 256;
__global__ void __launch_bounds__(kAddThreads)
    add_slices(float* y, const float* parts, int slices, int64_t floats) {
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int64_t at = 4 * (int64_t{blockIdx.x} * kAddThreads + threadIdx.x);
  if (at >= floats) return;
  float4 sum = __ldcg(reinterpret_cast<const float4*>(parts + at));
#pragma unroll 4
  for (int s = 1; s < slices; ++s) {
    const float4 v = __ldcg(reinterpret_cast<const float4*>(parts + s * floats + at));
    sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
  }
  *reinterpret_cast<float4*>(y + at) = sum;
}

}  // namespace

void gemm(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args) {
  if (args.num_slots == 0) return;
  const sm90::GemmParams params = sm90::gemm_params(w, args);
  if (w.format == Format::kBF16) {
    if (out == GemmOut::kSwiglu)
      return launch<GemmWeights::kRows, GemmOut::kSwiglu, false>(cx, params);
    CHECK(out == GemmOut::kF32);
    return launch<GemmWeights::kRows, GemmOut::kF32, false>(cx, params);
  }
  if (w.format == Format::kNvfp4) return launch_tiles<GemmWeights::kNvfp4>(cx, params, out);
  launch_tiles<GemmWeights::kTiles>(cx, params, out);
}

void gemm_slices(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x, int64_t tokens,
                 float* y) {
  if (tokens == 0) return;
  CHECK(w.format == Format::kNvfp4);
  using Shape = sm90::GemmShape<GemmWeights::kNvfp4, GemmOut::kSlices, true>;
  const int blocks = cx.kernels.gpu.num_sms;
  sm90::GemmParams params =
      sm90::gemm_params(w, {.x = x, .num_slots = static_cast<int32_t>(tokens)});
  const int64_t rows = slice_scratch_rows(tokens);
  const SlicedItems items =
      slices_of_items<Shape>(params, blocks, static_cast<int>(std::max<int64_t>(1, rows / tokens)));
  if (items.slices == 1) return gemm(cx, w, x, tokens, y);
  auto* const parts = scratch.take<float>(rows * w.rows);
  params.y = parts, params.max_n = items.max_n, params.slices = items.slices;
  cuda::launch(cx.stream, sm90::gemm_kernel<Shape>,
               {.grid = dim3(static_cast<unsigned>(blocks)),
                .block = dim3(Shape::kThreads),
                .smem_bytes = Shape::kBytes,
                .release = cuda::Release::kAfterWait},
               params);
  const int64_t floats = tokens * w.rows;
  cuda::launch(cx.stream, add_slices,
               {.grid = dim3(static_cast<unsigned>((floats / 4 + kAddThreads - 1) / kAddThreads)),
                .block = dim3(kAddThreads),
                .release = cuda::Release::kAfterWait},
               y, parts, items.slices, floats);
}

void gemm(Ctx& cx, const Weight& w, const uint16_t* x, int64_t tokens, float* y) {
  gemm(cx, w, GemmOut::kF32, {.x = x, .y = y, .num_slots = static_cast<int32_t>(tokens)});
}

}  // namespace nibble::ops::gpu
