// norm_qkv: y = x + d; h = norm(y); q, k, v = h Wqkv^T + b; each head of q and k normed, in models
// that do so, and turned by its position; k and v appended to the pages.
#pragma once

#include "ops/ctx.h"
#include "ops/step.h"
#include "ops/weight.h"

namespace nibble::ops {

struct NormQkvDesc {
  int64_t hidden = 0;
  int64_t q_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  Format format = Format::kBF16;
  int64_t tokens = 1;  // the most of a step that it is to serve
  WeightFacts facts = {};
  bool norms_heads = false;
  bool has_gates = false;  // behind each query head's rows of the matrix as many of its gate
  int64_t rotary_dim = 0;  // R: of each head so many are turned; 0: all
  bool operator==(const NormQkvDesc&) const = default;
};

// Of its matrix.
constexpr int64_t rows_of(const NormQkvDesc& d) {
  return ((d.has_gates ? 2 : 1) * d.q_heads + 2 * d.kv_heads) * d.head_dim;
}
// Whether attention could norm, turn and store its heads: see left_heads.h.
bool may_leave_heads(const NormQkvDesc& d);

// Of the input; of the heads of q and of k, [D] each, where NormQkvDesc::norms_heads.
struct QkvNorms {
  Norm input;
  Norm q = {}, k = {};
};

struct NormQkvOut {
  Tensor q;          // [T, Q * D] f32, out
  Tensor h;          // [T, H] f32, out
  Tensor y;          // [T, H] f32, out: not x, which every part of a kernel may still be reading
  Tensor gate = {};  // [T, Q * D] f32, out, where NormQkvDesc::has_gates
};

// x, d [T, H] f32; kv: the layer's pages (ops/kv_pages.h), whose tables cover every position of the
// step; qkv [(Q + 2G) * D, H]: rows of q, k, v; cos_sin [T, R] from rope_angles(). k and v are
// rounded once, to the pages' type; q to the activations'.
using NormQkvFn = void(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                       const Tensor& d, const QkvNorms& norms, const Weight& qkv,
                       const Tensor& cos_sin, const Step& s);
using NormQkvKernel = Kernel<NormQkvDesc, NormQkvFn>;

// site.norm, site.q_norm and k_norm; site.weight: qkv.
void norm_qkv(Ctx& cx, const Site& site, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
              const Tensor& d, const Tensor& cos_sin, const Step& s);
std::span<const NormQkvKernel> norm_qkv_kernels();

// An element of h and q has act_bytes, as has one of keys and values.
int64_t bytes(const NormQkvDesc& desc, int64_t tokens, int64_t act_bytes = 4);
int64_t flops(const NormQkvDesc& desc, int64_t tokens);

// Working memory of its kernels for steps of up to `tokens` tokens.
int64_t scratch_bytes(const NormQkvDesc& desc, int64_t tokens, int threads);

// The CPU kernels: Product, of cpu_matmul/product.h, says what weights meet which activations;
// defined for the instruction sets that it has kernels of.
template <typename Product, cpu::Isa kIsa>
struct CpuNormQkv {
  static NormQkvFn run;
};
namespace gpu {
NormQkvFn norm_qkv_tiles;
NormQkvFn norm_qkv_rows;
NormQkvFn norm_qkv_few;  // NVFP4
NormQkvFn norm_qkv_one;
NormQkvFn norm_qkv_f16;
NormQkvFn norm_qkv_bf16_few;  // heads of any size
NormQkvFn norm_qkv_gemm;
NormQkvFn norm_qkv_unit_gemm;
NormQkvFn norm_qkv_unit_gemm_fp8;
NormQkvFn norm_qkv_split;
NormQkvFn norm_qkv_unit_split;
NormQkvFn norm_qkv_gemm_fp8;
NormQkvFn norm_qkv_mma;
NormQkvFn norm_qkv_unit_mma;
NormQkvFn norm_qkv_w4a4;
NormQkvFn norm_qkv_block_scaled;
NormQkvFn norm_qkv_any;  // any shape

// Working memory for steps of up to desc.tokens tokens.
int64_t scratch_bytes(const NormQkvDesc& desc);
}  // namespace gpu
namespace ref {
NormQkvFn norm_qkv;
}
}  // namespace nibble::ops
