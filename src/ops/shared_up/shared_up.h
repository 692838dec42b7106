// shared_up: u = sigmoid(g . h) swiglu(h W1^T), the first half of an expert that every token meets
// beside those it chooses (the sigmoid is 1 in models that
// do not weigh it); out_proj is the second, to which moe_down adds. Rows of W1 interleave:
// row 2j is gate j, row 2j + 1 is up j.
#pragma once

#include "ops/ctx.h"
#include "ops/swiglu.h"
#include "ops/weight.h"

namespace nibble::ops {

struct SharedUpDesc {
  int64_t hidden = 0;
  int64_t width = 0;  // F
  Format format = Format::kBF16;
  int64_t tokens = 1;  // the most of a step that it is to serve
  WeightFacts facts = {};
  Swiglu act = {};
  bool operator==(const SharedUpDesc&) const = default;
  constexpr int64_t rows() const { return width * act.rows_each(); }
};

// u [T, F] f32, out; h [T, H] f32; up [2F, H]; gate [H] bf16: g, or none.
using SharedUpFn = void(Ctx& cx, const Tensor& u, const Tensor& h, const Weight& up,
                        const uint16_t* gate, const Swiglu& act);
using SharedUpKernel = Kernel<SharedUpDesc, SharedUpFn>;

// site.weight: up; site.gate; act is its problem's.
void shared_up(Ctx& cx, const Site& site, const Tensor& u, const Tensor& h);
std::span<const SharedUpKernel> shared_up_kernels();

// An element of h and u has act_bytes.
int64_t bytes(const SharedUpDesc& desc, int64_t tokens, int64_t act_bytes = 4);
int64_t flops(const SharedUpDesc& desc, int64_t tokens);

// Working memory of its kernels for steps of up to `tokens` tokens.
int64_t scratch_bytes(const SharedUpDesc& desc, int64_t tokens, int threads);

// The CPU kernels: Product, of cpu_matmul/product.h, says what weights meet which activations;
// defined for the instruction sets that it has kernels of.
template <typename Product, cpu::Isa kIsa>
struct CpuSharedUp {
  static SharedUpFn run;
};
namespace gpu {
SharedUpFn shared_up_one;   // NVFP4
SharedUpFn shared_up_few;   // NVFP4 or FP8, as the next
SharedUpFn shared_up_gemm;  // or BF16
SharedUpFn shared_up_mma;   // likewise
SharedUpFn shared_up_any;   // any shape

// Working memory for steps of up to desc.tokens tokens.
int64_t scratch_bytes(const SharedUpDesc& desc);
}  // namespace gpu
namespace ref {
SharedUpFn shared_up;
}
}  // namespace nibble::ops
