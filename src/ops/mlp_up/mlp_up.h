// mlp_up: y = x + d; h = norm(y); u = swiglu(h W1^T + b1), the first half of a dense MLP; out_proj
// is the second. Rows of W1 interleave: row 2j is gate j, row 2j + 1 is up j.
#pragma once

#include "ops/ctx.h"
#include "ops/swiglu.h"
#include "ops/weight.h"

namespace nibble::ops {

struct MlpUpDesc {
  int64_t hidden = 0;
  int64_t width = 0;  // F
  Format format = Format::kBF16;
  int64_t tokens = 1;  // the most of a step that it is to serve
  WeightFacts facts = {};
  Swiglu act = {};
  bool operator==(const MlpUpDesc&) const = default;
  constexpr int64_t rows() const { return width * act.rows_each(); }
};

struct MlpUpOut {
  Tensor u;  // [T, F] f32, out
  Tensor h;  // [T, H] f32, out
  Tensor y;  // [T, H] f32, out: not x, which every part of a kernel may still be reading
};

// x, d [T, H] f32; up [2F, H].
using MlpUpFn = void(Ctx& cx, const MlpUpOut& out, const Tensor& x, const Tensor& d,
                     const Norm& norm, const Weight& up, const Swiglu& act);
using MlpUpKernel = Kernel<MlpUpDesc, MlpUpFn>;

// site.norm; site.weight: up; act is its problem's.
void mlp_up(Ctx& cx, const Site& site, const MlpUpOut& out, const Tensor& x, const Tensor& d);
std::span<const MlpUpKernel> mlp_up_kernels();

// An element of h and u has act_bytes.
int64_t bytes(const MlpUpDesc& desc, int64_t tokens, int64_t act_bytes = 4);
int64_t flops(const MlpUpDesc& desc, int64_t tokens);

// Working memory of its kernels for steps of up to `tokens` tokens.
int64_t scratch_bytes(const MlpUpDesc& desc, int64_t tokens, int threads);

// The CPU kernels: Product, of cpu_matmul/product.h, says what weights meet which activations;
// defined for the instruction sets that it has kernels of.
template <typename Product, cpu::Isa kIsa>
struct CpuMlpUp {
  static MlpUpFn run;
};
namespace gpu {
MlpUpFn mlp_up_one;  // NVFP4, as the next four
MlpUpFn mlp_up_few;
MlpUpFn mlp_up_f16;
MlpUpFn mlp_up_split;
MlpUpFn mlp_up_stream;       // NVFP4
MlpUpFn mlp_up_rows_stream;  // BF16
MlpUpFn mlp_up_gemm;         // or BF16
MlpUpFn mlp_up_gemm_fp8;     // FP8 by row
MlpUpFn mlp_up_mma;          // of units
MlpUpFn mlp_up_w4a4;
MlpUpFn mlp_up_block_scaled;  // of NVFP4, MXFP8 and FP8 by row
MlpUpFn mlp_up_rows;          // BF16
MlpUpFn mlp_up_any;           // any shape

// Working memory for steps of up to desc.tokens tokens.
int64_t scratch_bytes(const MlpUpDesc& desc);
}  // namespace gpu
namespace ref {
MlpUpFn mlp_up;
}
}  // namespace nibble::ops
