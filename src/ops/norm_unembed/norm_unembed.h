// norm_unembed: logits[r] = norm(x[row] + d[row]) W^T for the rows whose logits are wanted.
#pragma once

#include "ops/ctx.h"
#include "ops/step.h"
#include "ops/weight.h"

namespace nibble::ops {

struct NormUnembedDesc {
  int64_t hidden = 0;
  int64_t vocab = 0;
  Format format = Format::kBF16;
  int64_t tokens = 1;  // the most rows of a step that it is to serve
  WeightFacts facts = {};
  bool operator==(const NormUnembedDesc&) const = default;
};

// logits [R, V] f32, out: never rounded to the activations' format; h [R, H] f32, out;
// x, d [T, H] f32; unembed [V, H]; row = s.out_rows[r].
using NormUnembedFn = void(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x,
                           const Tensor& d, const Norm& norm, const Weight& unembed, const Step& s);
using NormUnembedKernel = Kernel<NormUnembedDesc, NormUnembedFn>;

// site.norm; site.weight: unembed.
void norm_unembed(Ctx& cx, const Site& site, const Tensor& logits, const Tensor& h, const Tensor& x,
                  const Tensor& d, const Step& s);
std::span<const NormUnembedKernel> norm_unembed_kernels();

// An element of h has act_bytes.
int64_t bytes(const NormUnembedDesc& desc, int64_t rows, int64_t act_bytes = 4);
int64_t flops(const NormUnembedDesc& desc, int64_t rows);

// Working memory of its kernels for up to `rows` rows.
int64_t scratch_bytes(const NormUnembedDesc& desc, int64_t rows, int threads);

// The CPU kernels: Product, of cpu_matmul/product.h, says what weights meet which activations;
// defined for the instruction sets that it has kernels of.
template <typename Product, cpu::Isa kIsa>
struct CpuNormUnembed {
  static NormUnembedFn run;
};
namespace gpu {
NormUnembedFn norm_unembed_tiles;
NormUnembedFn norm_unembed_rows;
NormUnembedFn norm_unembed_few;  // NVFP4
NormUnembedFn norm_unembed_one;
NormUnembedFn norm_unembed_f16;
NormUnembedFn norm_unembed_gemm;
NormUnembedFn norm_unembed_gemm_fp8;
NormUnembedFn norm_unembed_mma;
NormUnembedFn norm_unembed_w4a4;
NormUnembedFn norm_unembed_block_scaled;
NormUnembedFn norm_unembed_any;  // any shape

// Working memory for steps of up to desc.tokens rows.
int64_t scratch_bytes(const NormUnembedDesc& desc);
}  // namespace gpu
namespace ref {
NormUnembedFn norm_unembed;
}
}  // namespace nibble::ops
