// Launches of the wgmma GEMM for weights of one format: a file each instantiates them, as they take
// long to compile.
#pragma once

#include "ops/gpu_matmul/gemm_items.h"
#include "ops/gpu_matmul/gemm_sm90.cuh"

namespace nibble::ops::gpu::sm90 {

template <class Shape>
void launch(Ctx& cx, const GemmParams& params) {
  cuda::launch(cx.stream, gemm_kernel<Shape>,
               {.grid = dim3(static_cast<unsigned>(cx.kernels.gpu.num_sms)),
                .block = dim3(Shape::kThreads),
                .smem_bytes = Shape::kBytes,
                .release = cuda::Release::kAfterWait},
               params);
}

template <Format kFormat, GemmOut kOut, bool kWide>
void launch(Ctx& cx, GemmParams params) {
  using Shape = GemmShape<kFormat, kOut, kWide>;
  params.max_n = slots_of_item<Shape>(params, cx.kernels.gpu.num_sms);
  launch<Shape>(cx, params);
}

template <Format kFormat, GemmOut kOut>
void launch_tiles(Ctx& cx, const GemmParams& params, bool is_wide) {
  if (is_wide)
    launch<kFormat, kOut, true>(cx, params);
  else
    launch<kFormat, kOut, false>(cx, params);
}

template <Format kFormat>
void launch_tiles(Ctx& cx, const GemmParams& params, GemmOut out) {
  const bool is_wide = has_wide_items(params);
  switch (out) {
    case GemmOut::kSwiglu:
      return launch_tiles<kFormat, GemmOut::kSwiglu>(cx, params, is_wide);
    case GemmOut::kBF16:
      return launch_tiles<kFormat, GemmOut::kBF16>(cx, params, is_wide);
    case GemmOut::kF32:
      return launch_tiles<kFormat, GemmOut::kF32>(cx, params, params.num_slots > 128);
    case GemmOut::kQkv:
      if constexpr (kFormat == Format::kMxfp4)
        return launch<kFormat, GemmOut::kQkv, true>(cx, params);
      CHECK(false && "other heads are turned behind the product");
      return;
    case GemmOut::kRelu2:
      if constexpr (kFormat == Format::kNvfp4)
        return launch_tiles<kFormat, GemmOut::kRelu2>(cx, params, is_wide);
      CHECK(false && "experts without a gate are NVFP4");
      return;
    case GemmOut::kSlices:
      CHECK(false && "gemm_slices() cuts them");
  }
}

// kSlices, of which params.y has room for so many; returns how many there are. One: nothing is
// launched.
template <Format kFormat>
int32_t launch_slices(Ctx& cx, GemmParams params, int64_t most) {
  using Shape = GemmShape<kFormat, GemmOut::kSlices, kFormat != Format::kBF16>;
  const SlicedItems items = slices_of_items<Shape>(params, cx.kernels.gpu.num_sms,
                                                   static_cast<int>(std::max<int64_t>(1, most)));
  params.max_n = items.max_n, params.slices = items.slices;
  if (items.slices > 1) launch<Shape>(cx, params);
  return items.slices;
}

// Each format in a file of its own, gemm_<format>_sm90.cu.
extern template void launch_tiles<Format::kNvfp4>(Ctx&, const GemmParams&, GemmOut);
extern template int32_t launch_slices<Format::kNvfp4>(Ctx&, GemmParams, int64_t);
extern template void launch_tiles<Format::kMxfp8>(Ctx&, const GemmParams&, GemmOut);
extern template int32_t launch_slices<Format::kMxfp8>(Ctx&, GemmParams, int64_t);
extern template void launch_tiles<Format::kFp8Row>(Ctx&, const GemmParams&, GemmOut);
extern template int32_t launch_slices<Format::kFp8Row>(Ctx&, GemmParams, int64_t);
extern template void launch_tiles<Format::kFp8Block>(Ctx&, const GemmParams&, GemmOut);
extern template int32_t launch_slices<Format::kFp8Block>(Ctx&, GemmParams, int64_t);
extern template void launch_tiles<Format::kInt4G32>(Ctx&, const GemmParams&, GemmOut);
extern template int32_t launch_slices<Format::kInt4G32>(Ctx&, GemmParams, int64_t);
extern template void launch_tiles<Format::kInt4G128>(Ctx&, const GemmParams&, GemmOut);
extern template int32_t launch_slices<Format::kInt4G128>(Ctx&, GemmParams, int64_t);

}  // namespace nibble::ops::gpu::sm90
