#include "ops/output_gate/output_gate.h"

#include "ops/refuse.h"
#include "ops/site.h"

namespace nibble::ops {
namespace {

template <cpu::Isa kIsa>
constexpr OutputGateKernel row(const char* name) {
  return {name, [](const OutputGateDesc&, const KernelOptions& o) { return refuse_isa(kIsa, o); },
          CpuOutputGate<kIsa>::run};
}

constexpr OutputGateKernel kKernels[] = {
    row<cpu::Isa::kAvx512>("avx512_float"),
    row<cpu::Isa::kAvx2>("avx2_float"),
    row<cpu::Isa::kNeon>("neon_float"),
    row<cpu::Isa::kScalar>("plain_any"),
    {"cuda_any", [](const OutputGateDesc&, const KernelOptions& o) { return refuse_cpu(o); },
     NIBBLE_CUDA_KERNEL(gpu::output_gate_any)},
    {"ref", [](const OutputGateDesc&, const KernelOptions& o) { return refuse_ref(o); },
     ref::output_gate},
};

}  // namespace

std::span<const OutputGateKernel> output_gate_kernels() { return kKernels; }

void output_gate(Ctx& cx, const Site& site, const Tensor& att, const Tensor& gate) {
  run_site<OutputGateKernel>(cx, site, att.dim(0), att, gate);
  cx.wrote({att.data});
}

int64_t bytes(const OutputGateDesc& d, int64_t tokens, int64_t act_bytes) {
  return tokens * d.width * (4 + 2 * act_bytes);
}

}  // namespace nibble::ops
