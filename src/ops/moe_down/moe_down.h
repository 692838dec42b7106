// moe_down: d[t] = sum over the K choices of p * (u[slot] W2_e^T + b2_e), in order of choice; from
// zero, or from what is there.
#pragma once

#include "ops/ctx.h"
#include "ops/routing.h"
#include "ops/swiglu.h"
#include "ops/weight.h"

namespace nibble::ops {

struct MoeDownDesc {
  int64_t hidden = 0;
  int64_t width = 0;  // F
  int64_t experts = 0;
  int64_t top_k = 0;
  Format format = Format::kMxfp4;
  int64_t tokens = 1;  // the most of a step that it is to serve
  WeightFacts facts = {};
  Swiglu act = {};     // that made u
  bool adds = false;   // to what d holds: a shared expert's
  int64_t shared = 0;  // Routing::shared
  bool operator==(const MoeDownDesc&) const = default;
};

// d [T, H] f32, out, unless the norm behind the sum over ranks makes it (leaves_choices()); u
// [T * K, F] f32 by slot; down [E, H, F].
using MoeDownFn = void(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                       const Weight& down);
using MoeDownKernel = Kernel<MoeDownDesc, MoeDownFn>;

// site.weight: down.
void moe_down(Ctx& cx, const Site& site, const Tensor& d, const Tensor& u, const Routing& routing);
std::span<const MoeDownKernel> moe_down_kernels();

// Where `distinct` experts are met by `tokens` tokens; an element of u has act_bytes.
int64_t bytes(const MoeDownDesc& desc, int64_t tokens, int64_t distinct, int64_t act_bytes = 4);
int64_t flops(const MoeDownDesc& desc, int64_t tokens);

// Working memory of its kernels for steps of up to `tokens` tokens.
int64_t scratch_bytes(const MoeDownDesc& desc, int64_t tokens, int threads);

// The CPU kernels: Product, of cpu_matmul/product.h, says what weights meet which activations;
// defined for the instruction sets that it has kernels of.
template <typename Product, cpu::Isa kIsa>
struct CpuMoeDown {
  static MoeDownFn run;
};
namespace gpu {
MoeDownFn moe_down;
MoeDownFn moe_down_batch;
MoeDownFn moe_down_few;  // NVFP4
MoeDownFn moe_down_each;
MoeDownFn moe_down_one;
MoeDownFn moe_down_narrow;
MoeDownFn moe_down_narrow_fp8;  // as moe_down_gemm_fp8
MoeDownFn moe_down_gemm;
MoeDownFn moe_down_gemm_fp8;       // takes u in E4M3
MoeDownFn moe_down_unit_gemm_fp8;  // rounds it to E4M3
MoeDownFn moe_down_mma;
MoeDownFn moe_down_slots;              // without clusters; the choice is made before
MoeDownFn moe_down_block_scaled;       // takes u in lane order (gpu_matmul/lane_order.h)
MoeDownFn moe_down_unit_block_scaled;  // rounds it to E4M3
MoeDownFn moe_down_w4a4;
MoeDownFn moe_down_any;  // any shape

// Working memory for steps of up to desc.tokens tokens.
int64_t scratch_bytes(const MoeDownDesc& desc);
}  // namespace gpu
namespace ref {
MoeDownFn moe_down;
}
}  // namespace nibble::ops
