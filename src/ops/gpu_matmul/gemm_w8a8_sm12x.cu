// Launches of the block-scaled GEMM with E4M3 activations, of dense weights in E4M3.
#include "ops/gpu_matmul/gemm_scaled_sm12x.cuh"
#include "ops/gpu_matmul/gemm_scaled_sm12x.h"

namespace nibble::ops::gpu::sm12x {

void gemm_w8a8(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args) {
  CHECK(w.experts == 1);
  if (w.format == Format::kMxfp8) {
    if (out == GemmOut::kQkv)
      return launch_scaled<ScaledShape<Format::kMxfp8, GemmOut::kQkv>>(cx, w, args);
    if (out == GemmOut::kSwiglu)
      return launch_scaled<ScaledShape<Format::kMxfp8, GemmOut::kSwiglu>>(cx, w, args);
    CHECK(out == GemmOut::kF32);
    return launch_scaled<ScaledShape<Format::kMxfp8, GemmOut::kF32>>(cx, w, args);
  }
  if (out == GemmOut::kSwiglu)
    return launch_scaled<ScaledShape<Format::kFp8Row, GemmOut::kSwiglu>>(cx, w, args);
  CHECK(out == GemmOut::kF32);
  launch_scaled<ScaledShape<Format::kFp8Row, GemmOut::kF32>>(cx, w, args);
}

}  // namespace nibble::ops::gpu::sm12x
