// The wgmma GEMM for weights in MXFP8.
#include "ops/gpu_matmul/gemm_launch_sm90.cuh"

namespace nibble::ops::gpu::sm90 {

template void launch_tiles<Format::kMxfp8>(Ctx&, const GemmParams&, GemmOut);
template int32_t launch_slices<Format::kMxfp8>(Ctx&, GemmParams, int64_t);

}  // namespace nibble::ops::gpu::sm90
