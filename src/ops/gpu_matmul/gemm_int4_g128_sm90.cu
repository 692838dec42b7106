// The wgmma GEMM for weights in INT4 with a scale for 128.
#include "ops/gpu_matmul/gemm_launch_sm90.cuh"

namespace nibble::ops::gpu::sm90 {

template void launch_tiles<Format::kInt4G128>(Ctx&, const GemmParams&, GemmOut);
template int32_t launch_slices<Format::kInt4G128>(Ctx&, GemmParams, int64_t);

}  // namespace nibble::ops::gpu::sm90
