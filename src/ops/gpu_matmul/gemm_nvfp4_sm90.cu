// The wgmma GEMM for weights in NVFP4.
#include "ops/gpu_matmul/gemm_launch_sm90.cuh"

namespace nibble::ops::gpu::sm90 {

template void launch_tiles<Format::kNvfp4>(Ctx&, const GemmParams&, GemmOut);
template int32_t launch_slices<Format::kNvfp4>(Ctx&, GemmParams, int64_t);

}  // namespace nibble::ops::gpu::sm90
