// output_gate: att *= sigmoid(gate), element by element: between attention and out_proj.
#pragma once

#include "ops/ctx.h"

namespace nibble::ops {

struct OutputGateDesc {
  int64_t width = 0;   // Q * D
  int64_t tokens = 1;  // the most of a step that it is to serve
  bool operator==(const OutputGateDesc&) const = default;
};

// att [T, Q * D] f32, in and out; gate [T, Q * D] f32.
using OutputGateFn = void(Ctx& cx, const Tensor& att, const Tensor& gate);
using OutputGateKernel = Kernel<OutputGateDesc, OutputGateFn>;

void output_gate(Ctx& cx, const Site& site, const Tensor& att, const Tensor& gate);
std::span<const OutputGateKernel> output_gate_kernels();

// An element of att has act_bytes.
int64_t bytes(const OutputGateDesc& desc, int64_t tokens, int64_t act_bytes = 4);
inline int64_t flops(const OutputGateDesc&, int64_t) { return 0; }
inline int64_t scratch_bytes(const OutputGateDesc&, int64_t, int) { return 0; }

// Defined for kAvx512, kAvx2, kNeon and kScalar.
template <cpu::Isa kIsa>
struct CpuOutputGate {
  static OutputGateFn run;
};
namespace gpu {
OutputGateFn output_gate_any;
inline int64_t scratch_bytes(const OutputGateDesc&) { return 0; }
}  // namespace gpu
namespace ref {
OutputGateFn output_gate;
}
}  // namespace nibble::ops
