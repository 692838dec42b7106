// The wgmma GEMM for weights in FP8 with a scale a block.
#include "ops/gpu_matmul/gemm_launch_sm90.cuh"

namespace nibble::ops::gpu::sm90 {

template void launch_tiles<Format::kFp8Block>(Ctx&, const GemmParams&, GemmOut);
template int32_t launch_slices<Format::kFp8Block>(Ctx&, GemmParams, int64_t);

}  // namespace nibble::ops::gpu::sm90
