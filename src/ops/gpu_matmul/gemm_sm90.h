// The wgmma GEMM of many rows, as rows of kernel tables call it. Kernel: gemm_sm90.cuh.
#pragma once

#include <cstdint>

#include "ops/ctx.h"
#include "ops/norm_qkv/qkv_store.h"
#include "ops/swiglu.h"
#include "ops/weight.h"

namespace nibble::ops::gpu {

enum class GemmWeights { kTiles, kRows };  // MXFP4 in kTiles16x64; bf16 rows
// kQkv, of MXFP4 alone: heads of 64 rows, turned and stored by GemmArgs::qkv (gemm_turn_sm90.cuh).
enum class GemmOut { kSwiglu, kBF16, kF32, kQkv };

// Device addresses; shapes and meaning: gemm_sm90.cuh. What a weight states is taken from it.
struct GemmArgs {
  const void* x;
  const int32_t* token;
  const int32_t* offsets;
  void* y;
  int32_t num_slots;
  Swiglu act;
  const uint16_t* bias;
  int32_t experts, rows, cols;
  int32_t max_n;  // slots of a work item, at most
  // E4M3 activations only.
  const uint8_t* row_exponents;
  const float* x_scale;
  float x_scale_all;
  QkvStore qkv;  // of kQkv
};

// y = x W^T + b, every slot with its expert's.
void gemm(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args);

// Dense: y [T, N] f32 = x [T, K] W^T + b.
void gemm(Ctx& cx, const Weight& w, const uint16_t* x, int64_t tokens, float* y);

}  // namespace nibble::ops::gpu
