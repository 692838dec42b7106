// Products with E4M3 activations by SM12x's block-scaled mma, as rows of kernel tables call them.
// Kernel: gemm_fp8_sm12x.cuh. Elsewhere than on SM12x it is emulated, for tests.
#pragma once

#include "ops/gpu_matmul/e4m3_rows.h"
#include "ops/gpu_matmul/gemm_sm90.h"

namespace nibble::ops::gpu::sm12x {

// bf16 [rows, w.cols] to E4M3 in the lane order of w's format, each row with its scale.
E4m3Rows quantize_rows(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x, int64_t rows);

// y = x W^T + b as sm90's gemm() makes it, of x in E4M3. W in MXFP4, which has all outputs but
// kRelu2 and kSlices, its kSwiglu in E4M3; in NVFP4 kF32, kBF16 and kSwiglu; dense in FP8 by row
// kF32 and kSwiglu, in MXFP8 kQkv, too.
void gemm_fp8(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args);

// Dense: y [T, N] f32 = x [T, K] W^T + b, of x in bf16.
void gemm_fp8(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x, int64_t tokens,
              float* y);

// gemm_fp8() of those formats.
void gemm_w8a8(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args);
void gemm_nvfp4a8(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args);

}  // namespace nibble::ops::gpu::sm12x
