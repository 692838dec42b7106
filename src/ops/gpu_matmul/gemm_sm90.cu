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

template <GemmOut kOut>
void launch_tiles(Ctx& cx, const sm90::GemmParams& params) {
  if (has_wide_items(params))
    launch<GemmWeights::kTiles, kOut, true>(cx, params);
  else
    launch<GemmWeights::kTiles, kOut, false>(cx, params);
}

}  // namespace

void gemm(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args) {
  if (args.num_slots == 0) return;
  const sm90::GemmParams params = sm90::gemm_params(w, args);
  if (w.format == Format::kBF16) {
    CHECK(out == GemmOut::kF32);
    return launch<GemmWeights::kRows, GemmOut::kF32, false>(cx, params);
  }
  switch (out) {
    case GemmOut::kSwiglu:
      return launch_tiles<GemmOut::kSwiglu>(cx, params);
    case GemmOut::kBF16:
      return launch_tiles<GemmOut::kBF16>(cx, params);
    case GemmOut::kF32:
      if (params.num_slots > 128)
        return launch<GemmWeights::kTiles, GemmOut::kF32, true>(cx, params);
      return launch<GemmWeights::kTiles, GemmOut::kF32, false>(cx, params);
    case GemmOut::kQkv:
      return launch<GemmWeights::kTiles, GemmOut::kQkv, true>(cx, params);
  }
}

void gemm(Ctx& cx, const Weight& w, const uint16_t* x, int64_t tokens, float* y) {
  gemm(cx, w, GemmOut::kF32, {.x = x, .y = y, .num_slots = static_cast<int32_t>(tokens)});
}

}  // namespace nibble::ops::gpu
