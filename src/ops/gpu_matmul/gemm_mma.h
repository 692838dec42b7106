// The GEMM by mma.sync of many rows, as rows of kernel tables call it. Kernel: gemm_mma.cuh.
#pragma once

#include "ops/gpu_matmul/gemm_sm90.h"

namespace nibble::ops::gpu::mma {

// y = x W^T + b, every slot with its expert's; W in tiles, or a dense one in bf16, of kF32 and
// kQkv. kQkv of MXFP4 and bf16 alone.
void gemm(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args);

}  // namespace nibble::ops::gpu::mma
