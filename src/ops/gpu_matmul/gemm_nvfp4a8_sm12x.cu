// Launches of the block-scaled GEMM with E4M3 activations, of weights in NVFP4.
#include "ops/gpu_matmul/gemm_scaled_sm12x.cuh"
#include "ops/gpu_matmul/gemm_scaled_sm12x.h"

namespace nibble::ops::gpu::sm12x {

void gemm_nvfp4a8(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args) {
  if (out == GemmOut::kF32)
    return launch_scaled<ScaledShape<Format::kNvfp4, GemmOut::kF32>>(cx, w, args);
  if (out == GemmOut::kBF16)
    return launch_scaled<ScaledShape<Format::kNvfp4, GemmOut::kBF16>>(cx, w, args);
  if (out == GemmOut::kRelu2)
    return launch_scaled<ScaledShape<Format::kNvfp4, GemmOut::kRelu2>>(cx, w, args);
  CHECK(out == GemmOut::kSwiglu);
  launch_scaled<ScaledShape<Format::kNvfp4, GemmOut::kSwiglu>>(cx, w, args);
}

}  // namespace nibble::ops::gpu::sm12x
