// Products of many rows with E4M3 activations, as rows of kernel tables call them. Kernel:
// gemm_fp8_sm90.cuh.
#pragma once

#include <cstdint>

#include "ops/gpu_matmul/e4m3_rows.h"
#include "ops/gpu_matmul/gemm_sm90.h"

namespace nibble::ops::gpu {

// bf16 [rows, cols] to E4M3, each row with its scale; cols % 32 == 0.
E4m3Rows quantize_rows(Ctx& cx, Scratch& scratch, const uint16_t* x, int64_t rows, int64_t cols);

// Of the site's weight, which has them.
const uint8_t* row_exponents_of(const Ctx& cx);

// y = x W^T + b as gemm() makes it, of x in E4M3; w is the site's, in MXFP4 or NVFP4 (all but
// kQkv), or in FP8 by row: then dense, kF32 or kSwiglu.
void gemm_fp8(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args);

// Dense: y [T, N] f32 = x [T, K] W^T + b, of x in bf16; w is the site's.
void gemm_fp8(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x, int64_t tokens,
              float* y);

}  // namespace nibble::ops::gpu
