// norm_linear: y = x + d; h = norm(y); p = h W^T: what enters a recurrent layer.
#pragma once

#include "ops/ctx.h"
#include "ops/weight.h"

namespace nibble::ops {

struct NormLinearDesc {
  int64_t hidden = 0;
  int64_t width = 0;  // N
  Format format = Format::kBF16;
  int64_t tokens = 1;  // the most of a step that it is to serve
  WeightFacts facts = {};
  bool operator==(const NormLinearDesc&) const = default;
};

struct NormLinearOut {
  Tensor p;  // [T, N] f32, out: never rounded to the activations' format
  Tensor h;  // [T, H] f32, out
  Tensor y;  // [T, H] f32, out: not x, which every part of a kernel may still be reading
};

// x, d [T, H] f32; in [N, H].
using NormLinearFn = void(Ctx& cx, const NormLinearOut& out, const Tensor& x, const Tensor& d,
                          const Norm& norm, const Weight& in);
using NormLinearKernel = Kernel<NormLinearDesc, NormLinearFn>;

// site.norm; site.weight: in.
void norm_linear(Ctx& cx, const Site& site, const NormLinearOut& out, const Tensor& x,
                 const Tensor& d);
std::span<const NormLinearKernel> norm_linear_kernels();

// An element of h has act_bytes.
int64_t bytes(const NormLinearDesc& desc, int64_t tokens, int64_t act_bytes = 4);
int64_t flops(const NormLinearDesc& desc, int64_t tokens);

// Working memory of its kernels for steps of up to `tokens` tokens.
int64_t scratch_bytes(const NormLinearDesc& desc, int64_t tokens, int threads);

// The CPU kernels: Product, of cpu_matmul/product.h, says what weights meet which activations;
// defined for the instruction sets that it has kernels of.
template <typename Product, cpu::Isa kIsa>
struct CpuNormLinear {
  static NormLinearFn run;
};
namespace gpu {
NormLinearFn norm_linear_one;   // NVFP4
NormLinearFn norm_linear_f16;   // likewise
NormLinearFn norm_linear_few;   // NVFP4 or FP8, as the next
NormLinearFn norm_linear_gemm;  // or BF16
NormLinearFn norm_linear_mma;   // likewise
NormLinearFn norm_linear_rows;  // BF16
NormLinearFn norm_linear_any;   // any shape

// Working memory for steps of up to desc.tokens tokens.
int64_t scratch_bytes(const NormLinearDesc& desc);
}  // namespace gpu
namespace ref {
NormLinearFn norm_linear;
}
}  // namespace nibble::ops
