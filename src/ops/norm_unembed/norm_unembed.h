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
};

// logits [R, V] f32, out: never rounded to the activations' format; h [R, H] f32, out;
// x, d [T, H] f32; unembed [V, H]; row = s.out_rows[r].
using NormUnembedFn = void(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x,
                           const Tensor& d, const Norm& norm, const Weight& unembed, const Step& s);
using NormUnembedKernel = Kernel<NormUnembedDesc, NormUnembedFn>;

NormUnembedFn norm_unembed;
std::span<const NormUnembedKernel> norm_unembed_kernels();

int64_t bytes(const NormUnembedDesc& desc, int64_t rows);
int64_t flops(const NormUnembedDesc& desc, int64_t rows);

// Working memory of its kernels for up to `rows` rows.
int64_t scratch_bytes(const NormUnembedDesc& desc, int64_t rows, int threads);

// The blocked float path; defined for kAvx512, kAvx2 and kNeon.
template <cpu::Isa kIsa>
struct BlockedNormUnembed {
  static NormUnembedFn run;
};
// MXFP8 weights by float32 activations; defined for kAvx512, kAvx2 and kNeon.
template <cpu::Isa kIsa>
struct Fp8NormUnembed {
  static NormUnembedFn run;
};
// MXFP8 weights by bf16 activations; defined for kAmx and kAvx512Bf16.
template <cpu::Isa kIsa>
struct Bf16NormUnembed {
  static NormUnembedFn run;
};
// bf16 weights by bf16 activations; defined for kAmx.
template <cpu::Isa kIsa>
struct Bf16RowNormUnembed {
  static NormUnembedFn run;
};
// MXFP4 weights by int8 activations; defined for kAvx512Vnni, kAvxVnni, kAvx2 and kNeonDot.
template <cpu::Isa kIsa>
struct Int8NormUnembed {
  static NormUnembedFn run;
};
// The same with one step per token; defined for kAmx and kAvx512Vnni.
template <cpu::Isa kIsa>
struct Int8RowNormUnembed {
  static NormUnembedFn run;
};
namespace gpu {
NormUnembedFn norm_unembed_tiles;
NormUnembedFn norm_unembed_rows;
NormUnembedFn norm_unembed_gemm;
NormUnembedFn norm_unembed_gemm_fp8;

// Working memory for steps of up to desc.tokens rows.
int64_t scratch_bytes(const NormUnembedDesc& desc);
}  // namespace gpu
namespace ref {
NormUnembedFn norm_unembed;
}
}  // namespace nibble::ops
