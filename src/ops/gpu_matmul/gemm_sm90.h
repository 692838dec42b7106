// The wgmma GEMM of many rows, as rows of kernel tables call it. Kernel: gemm_sm90.cuh.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/ctx.h"
#include "ops/norm_qkv/qkv_store.h"
#include "ops/scratch.h"
#include "ops/swiglu.h"
#include "ops/weight.h"

namespace nibble::ops::gpu {

// kQkv, of MXFP4 alone: heads of 64 rows, turned and stored by GemmArgs::qkv (gemm_turn_sm90.cuh).
// kRelu2, of NVFP4 alone: bf16 of max(y, 0)^2.
// kSlices, of all but MXFP4: float32, of each share of K by itself: y [slices, slots, N].
enum class GemmOut { kSwiglu, kBF16, kF32, kQkv, kSlices, kRelu2 };

// Device addresses; shapes and meaning: gemm_sm90.cuh. What a weight states is taken from it.
struct GemmArgs {
  const void* x;
  const int32_t* token;
  const int32_t* offsets;
  void* y;
  int32_t num_slots;
  Swiglu act;
  const uint16_t* bias;
  const float* row_scales;
  int32_t experts, rows, cols;
  int32_t max_n;   // slots of a work item, at most
  int32_t slices;  // shares of K, of kSlices
  // E4M3 activations only.
  const uint8_t* row_exponents;
  const float* x_scale;
  float x_scale_all;
  QkvStore qkv;  // of kQkv
};

// y = x W^T + b, every slot with its expert's.
void gemm(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args);

// Dense weights but MXFP4, of some tokens: y [T, N] f32 = x [T, K] W^T + b, K shared out
// to more blocks where rows alone are too few; takes slice_scratch_rows(tokens) rows of N float32.
void gemm_slices(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x, int64_t tokens,
                 float* y);
inline int64_t slice_scratch_rows(int64_t tokens) { return std::min<int64_t>(8 * tokens, 2048); }
inline bool has_slices(Format format) {
  return format == Format::kBF16 || format == Format::kNvfp4 || format == Format::kMxfp8 ||
         format == Format::kFp8Row || format == Format::kFp8Block || format == Format::kInt4G32 ||
         format == Format::kInt4G128;
}

// Dense: y [T, N] f32 = x [T, K] W^T + b.
void gemm(Ctx& cx, const Weight& w, const uint16_t* x, int64_t tokens, float* y);

}  // namespace nibble::ops::gpu
