// The wgmma GEMM of a prompt's tokens with dense BF16 rows, as gemm() calls it. Kernel:
// gemm_dense_sm90.cuh.
#pragma once

#include "ops/gpu_matmul/gemm_sm90.h"

namespace nibble::ops::gpu {

// Whether its items, of 128 rows by 256 tokens, keep the SMs busy: a prompt's tokens, and not a
// router's rows.
bool has_items_of_gemm_dense(const Weight& w, int32_t tokens, int num_sms);

// kF32 or kSwiglu.
void gemm_dense(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args);

}  // namespace nibble::ops::gpu
