// Products with E4M3 activations by SM12x's block-scaled mma, as rows of kernel tables call them.
// Kernel: gemm_fp8_sm12x.cuh. Elsewhere than on SM12x it is emulated, for tests.
#pragma once

#include "ops/gpu_matmul/e4m3_rows.h"
#include "ops/gpu_matmul/gemm_sm90.h"

namespace nibble::ops::gpu::sm12x {

// bf16 [rows, cols] to E4M3 in lane order, each row with its scale; cols % 64 == 0.
E4m3Rows quantize_rows(Ctx& cx, Scratch& scratch, const uint16_t* x, int64_t rows, int64_t cols);

// y = x W^T + b as sm90's gemm() makes it, of x in E4M3.
void gemm_fp8(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args);

// Dense: y [T, N] f32 = x [T, K] W^T + b, of x in bf16.
void gemm_fp8(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x, int64_t tokens,
              float* y);

}  // namespace nibble::ops::gpu::sm12x
