// Launches of the GEMM by mma.sync.
#include "ops/gpu_matmul/gemm_mma.cuh"
#include "ops/gpu_matmul/gemm_mma.h"

namespace nibble::ops::gpu::mma {
namespace {

template <GemmOut kOut>
void launch_tiles(Ctx& cx, const Weight& w, const GemmArgs& args) {
  CHECK(w.layout == Layout::kTiles16x64);
  switch (w.format) {
    case Format::kMxfp4:
      return launch<MmaShape<Format::kMxfp4, kOut>>(cx, w, args);
    case Format::kNvfp4:
      return launch<MmaShape<Format::kNvfp4, kOut>>(cx, w, args);
    case Format::kMxfp8:
      return launch<MmaShape<Format::kMxfp8, kOut>>(cx, w, args);
    case Format::kFp8Row:
      return launch<MmaShape<Format::kFp8Row, kOut>>(cx, w, args);
    case Format::kFp8Block:
      return launch<MmaShape<Format::kFp8Block, kOut>>(cx, w, args);
    case Format::kInt4G32:
      return launch<MmaShape<Format::kInt4G32, kOut>>(cx, w, args);
    case Format::kInt4G128:
      return launch<MmaShape<Format::kInt4G128, kOut>>(cx, w, args);
    default:
      CHECK(false);
  }
}

template <GemmOut kOut>
void launch_rows(Ctx& cx, const Weight& w, const GemmArgs& args) {
  CHECK(w.format == Format::kBF16 && w.layout == Layout::kRows && w.experts == 1);
  launch<MmaShape<Format::kBF16, kOut>>(cx, w, args);
}

}  // namespace

void gemm(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args) {
  if (args.num_slots == 0) return;
  switch (out) {
    case GemmOut::kSwiglu:
      return launch_tiles<GemmOut::kSwiglu>(cx, w, args);
    case GemmOut::kBF16:
      return launch_tiles<GemmOut::kBF16>(cx, w, args);
    case GemmOut::kF32:
      if (w.format == Format::kBF16) return launch_rows<GemmOut::kF32>(cx, w, args);
      return launch_tiles<GemmOut::kF32>(cx, w, args);
    case GemmOut::kQkv:
      if (w.format == Format::kBF16) return launch_rows<GemmOut::kQkv>(cx, w, args);
      CHECK(w.format == Format::kMxfp4);
      return launch<MmaShape<Format::kMxfp4, GemmOut::kQkv>>(cx, w, args);
    case GemmOut::kRelu2:
      CHECK(w.format == Format::kNvfp4);
      return launch<MmaShape<Format::kNvfp4, GemmOut::kRelu2>>(cx, w, args);
    case GemmOut::kSlices:
      CHECK(false);
  }
}

}  // namespace nibble::ops::gpu::mma
