// Launches of the wgmma GEMM. One tile serves all: 256 rows x 128 slots; narrower ones with more
// stages gained nothing where bytes bind.
#include "ops/linear/gemm_sm90.cuh"

namespace nibble::ops::gpu {
namespace {

template <GemmWeights kWeights, GemmOut kOut, int kStages>
void launch(Ctx& cx, const sm90::GemmParams& params) {
  using Shape = sm90::GemmShape<kWeights, kOut, 2, 2, 128, kStages>;
  const auto blocks = static_cast<unsigned>(cx.kernels.gpu.num_sms);
  cuda::launch(cx.stream, sm90::gemm_kernel<Shape>,
               {.grid = dim3(blocks), .block = dim3(Shape::kThreads), .smem_bytes = Shape::kBytes},
               params);
}

}  // namespace

void gemm(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args) {
  if (args.num_slots == 0) return;
  const sm90::GemmParams params = sm90::gemm_params(w, args);
  if (w.format == Format::kBF16) {
    CHECK(out == GemmOut::kF32);
    return launch<GemmWeights::kRows, GemmOut::kF32, 4>(cx, params);
  }
  switch (out) {
    case GemmOut::kSwiglu:
      return launch<GemmWeights::kTiles, GemmOut::kSwiglu, 8>(cx, params);
    case GemmOut::kBF16:
      return launch<GemmWeights::kTiles, GemmOut::kBF16, 8>(cx, params);
    case GemmOut::kF32:
      return launch<GemmWeights::kTiles, GemmOut::kF32, 8>(cx, params);
  }
}

void gemm(Ctx& cx, const Weight& w, const uint16_t* x, int64_t tokens, float* y) {
  gemm(cx, w, GemmOut::kF32, {.x = x, .y = y, .num_slots = static_cast<int32_t>(tokens)});
}

}  // namespace nibble::ops::gpu
