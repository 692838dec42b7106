// Launches of the block-scaled GEMM with E2M1 activations.
#include "ops/gpu_matmul/gemm_scaled_sm12x.cuh"
#include "ops/gpu_matmul/gemm_scaled_sm12x.h"

namespace nibble::ops::gpu::sm12x {
namespace {

template <Format kFormat, GemmOut kOut>
void launch(Ctx& cx, const Weight& w, const GemmArgs& args) {
  launch_scaled<ScaledShape<kFormat, kOut, Values::kE2m1>>(cx, w, args);
}

}  // namespace

void gemm_w4a4(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& of) {
  GemmArgs args = of;
  if (args.x_scale == nullptr) args.x_scale_all = 1;
  const bool is_nvfp4 = w.format == Format::kNvfp4;
  switch (out) {
    case GemmOut::kSwiglu:
      return is_nvfp4 ? launch<Format::kNvfp4, GemmOut::kSwiglu>(cx, w, args)
                      : launch<Format::kMxfp4, GemmOut::kSwiglu>(cx, w, args);
    case GemmOut::kBF16:
      return is_nvfp4 ? launch<Format::kNvfp4, GemmOut::kBF16>(cx, w, args)
                      : launch<Format::kMxfp4, GemmOut::kBF16>(cx, w, args);
    case GemmOut::kF32:
      return is_nvfp4 ? launch<Format::kNvfp4, GemmOut::kF32>(cx, w, args)
                      : launch<Format::kMxfp4, GemmOut::kF32>(cx, w, args);
    case GemmOut::kQkv:
      CHECK(!is_nvfp4);
      return launch<Format::kMxfp4, GemmOut::kQkv>(cx, w, args);
    case GemmOut::kRelu2:
      CHECK(is_nvfp4);
      return launch<Format::kNvfp4, GemmOut::kRelu2>(cx, w, args);
    case GemmOut::kSlices:
      CHECK(false);
  }
}

}  // namespace nibble::ops::gpu::sm12x
