// Launches of the GEMM by mma.sync.
#include "ops/gpu_matmul/gemm_mma.cuh"
#include "ops/gpu_matmul/gemm_mma.h"

namespace nibble::ops::gpu::mma {
namespace {

template <GemmOut kOut>
void launch_dense(Ctx& cx, const Weight& w, const GemmArgs& args) {
  if (w.format == Format::kMxfp4) return launch<MmaShape<Format::kMxfp4, kOut>>(cx, w, args);
  CHECK(w.layout == Layout::kRows && w.experts == 1);
  launch<MmaShape<Format::kBF16, kOut>>(cx, w, args);
}

}  // namespace

void gemm(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args) {
  if (args.num_slots == 0) return;
  switch (out) {
    case GemmOut::kSwiglu:
      return launch<MmaShape<Format::kMxfp4, GemmOut::kSwiglu>>(cx, w, args);
    case GemmOut::kBF16:
      return launch<MmaShape<Format::kMxfp4, GemmOut::kBF16>>(cx, w, args);
    case GemmOut::kF32:
      return launch_dense<GemmOut::kF32>(cx, w, args);
    case GemmOut::kQkv:
      return launch_dense<GemmOut::kQkv>(cx, w, args);
    case GemmOut::kSlices:
      CHECK(false);
  }
}

}  // namespace nibble::ops::gpu::mma
