// moe_up: for each slot (a token at one of its experts) u = swiglu(h W1_e^T + b1_e).
// Rows of W1 interleave: row 2j is gate j, row 2j + 1 is up j.
#pragma once

#include "ops/ctx.h"
#include "ops/routing.h"
#include "ops/swiglu.h"
#include "ops/weight.h"

namespace nibble::ops {

struct MoeUpDesc {
  int64_t hidden = 0;
  int64_t width = 0;  // F
  int64_t experts = 0;
  int64_t top_k = 0;
  Format format = Format::kMxfp4;
  int64_t tokens = 1;  // the most of a step that it is to serve
  WeightFacts facts = {};
  Swiglu act = {};
  int64_t shared = 0;  // Routing::shared
  bool operator==(const MoeUpDesc&) const = default;
  constexpr int64_t rows() const { return width * act.rows_each(); }
};

// u [T * K, F] f32 by slot, out; h [T, H] f32; up [E, 2F, H].
using MoeUpFn = void(Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing,
                     const Weight& up, const Swiglu& act);
using MoeUpKernel = Kernel<MoeUpDesc, MoeUpFn>;

// site.weight: up; act is its problem's.
void moe_up(Ctx& cx, const Site& site, const Tensor& u, const Tensor& h, const Routing& routing);
std::span<const MoeUpKernel> moe_up_kernels();

// Where `distinct` experts are met by `tokens` tokens; an element of h and u has act_bytes.
int64_t bytes(const MoeUpDesc& desc, int64_t tokens, int64_t distinct, int64_t act_bytes = 4);
int64_t flops(const MoeUpDesc& desc, int64_t tokens);

// Working memory of its kernels for steps of up to `tokens` tokens.
int64_t scratch_bytes(const MoeUpDesc& desc, int64_t tokens, int threads);

// The CPU kernels: Product, of cpu_matmul/product.h, says what weights meet which activations;
// defined for the instruction sets that it has kernels of.
template <typename Product, cpu::Isa kIsa>
struct CpuMoeUp {
  static MoeUpFn run;
};
namespace gpu {
MoeUpFn moe_up;
MoeUpFn moe_up_batch;
MoeUpFn moe_up_few;  // NVFP4
MoeUpFn moe_up_each;
MoeUpFn moe_up_one;
MoeUpFn moe_up_narrow;
MoeUpFn moe_up_narrow_fp8;  // as moe_up_gemm_fp8
MoeUpFn moe_up_gemm;
MoeUpFn moe_up_gemm_fp8;  // of MXFP4: leaves u in E4M3
MoeUpFn moe_up_mma;
MoeUpFn moe_up_block_scaled;  // the same in lane order (gpu_matmul/lane_order.h); or of NVFP4
MoeUpFn moe_up_w4a4;
MoeUpFn moe_up_any;  // any shape

// Working memory for steps of up to desc.tokens tokens.
int64_t scratch_bytes(const MoeUpDesc& desc);
}  // namespace gpu
namespace ref {
MoeUpFn moe_up;
}  // namespace ref
}  // namespace nibble::ops
