// out_proj: d = att Wo^T + b.
#pragma once

#include "ops/ctx.h"
#include "ops/step.h"
#include "ops/weight.h"

namespace nibble::ops {

struct OutProjDesc {
  int64_t hidden = 0;
  int64_t width = 0;  // Q * D
  Format format = Format::kBF16;
  int64_t tokens = 1;  // the most of a step that it is to serve
  WeightFacts facts = {};
  bool operator==(const OutProjDesc&) const = default;
};

// d [T, H] f32, out, or bf16 where its rows are sent to all ranks (sends_sum()); att [T, Q * D]
// f32; out [H, Q * D].
using OutProjFn = void(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out,
                       const Step& s);
using OutProjKernel = Kernel<OutProjDesc, OutProjFn>;

// site.weight: out.
void out_proj(Ctx& cx, const Site& site, const Tensor& d, const Tensor& att, const Step& s);
std::span<const OutProjKernel> out_proj_kernels();

// From so many tokens on `row` sends a sum over the ranks that is left to a norm, and d is bf16;
// INT64_MAX: never.
int64_t sends_from(const OutProjDesc& desc, std::string_view row, const KernelOptions& options);

// An element of att has act_bytes.
int64_t bytes(const OutProjDesc& desc, int64_t tokens, int64_t act_bytes = 4);
int64_t flops(const OutProjDesc& desc, int64_t tokens);

// Working memory of its kernels for steps of up to `tokens` tokens.
int64_t scratch_bytes(const OutProjDesc& desc, int64_t tokens, int threads);

// The CPU kernels: Product, of cpu_matmul/product.h, says what weights meet which activations;
// defined for the instruction sets that it has kernels of.
template <typename Product, cpu::Isa kIsa>
struct CpuOutProj {
  static OutProjFn run;
};
namespace gpu {
OutProjFn out_proj_tiles;
OutProjFn out_proj_rows;
OutProjFn out_proj_few;  // NVFP4
OutProjFn out_proj_one;
OutProjFn out_proj_gemm;
OutProjFn out_proj_gemm_slices;  // of all but MXFP4
OutProjFn out_proj_stream;       // BF16
OutProjFn out_proj_split;
OutProjFn out_proj_unit_split;
OutProjFn out_proj_unit_stream;  // NVFP4, as the next
OutProjFn out_proj_f16;
OutProjFn out_proj_gemm_fp8;
OutProjFn out_proj_mma;
OutProjFn out_proj_w4a4;
OutProjFn out_proj_block_scaled;
OutProjFn out_proj_any;  // any shape

// Working memory for steps of up to desc.tokens tokens.
int64_t scratch_bytes(const OutProjDesc& desc);
}  // namespace gpu
namespace ref {
OutProjFn out_proj;
}
}  // namespace nibble::ops
