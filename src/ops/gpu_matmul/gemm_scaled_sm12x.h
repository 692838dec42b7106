// Products by SM12x's block-scaled mma, as rows of kernel tables call them.
// Kernel: gemm_scaled_sm12x.cuh. Elsewhere than on SM12x it is emulated, for tests.
#pragma once

#include "ops/gpu_matmul/e4m3_rows.h"
#include "ops/gpu_matmul/gemm_sm90.h"

namespace nibble::ops::gpu::sm12x {

// Activations in E4M3, or in E2M1 (e2m1_rows.h), in lane order; scales [rows]: none of E2M1 for
// MXFP4.
struct InputRows {
  uint8_t* codes;
  float* scales;
};

// bf16 [rows, w.cols] to kFp8 or kFp4 for weights as w. Takes no more than take_e4m3_rows().
InputRows quantize_rows(Ctx& cx, Scratch& scratch, ActFormat to, const Weight& w, const uint16_t* x,
                        int64_t rows);

// y = x W^T + b as sm90's gemm() makes it, of x as quantize_rows() leaves it. kFp8: W in MXFP4,
// which has all outputs but kRelu2 and kSlices, its kSwiglu in E4M3; in NVFP4 kF32, kBF16, kSwiglu
// and kRelu2; dense in FP8 by row kF32 and kSwiglu, in MXFP8 kQkv, too. kFp4: the same but for
// formats of 8 bits and E4M3.
void gemm_scaled(Ctx& cx, ActFormat x, const Weight& w, GemmOut out, const GemmArgs& args);

// Dense: y [T, N] f32 = x [T, K] W^T + b, of x in bf16, which is rounded `to` one of them.
void gemm_scaled(Ctx& cx, Scratch& scratch, ActFormat to, const Weight& w, const uint16_t* x,
                 int64_t tokens, float* y);

// gemm_scaled() of those formats.
void gemm_w4a4(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args);
void gemm_w4a8(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args);
void gemm_w8a8(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args);
void gemm_nvfp4a8(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args);

}  // namespace nibble::ops::gpu::sm12x
