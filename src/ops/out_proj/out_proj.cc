#include "ops/out_proj/out_proj.h"

#include "ops/refuse.h"

namespace nibble::ops {
namespace {

template <cpu::Isa kIsa>
constexpr OutProjKernel row(const char* name) {
  return {name,
          [](const OutProjDesc& d, const KernelOptions& o) {
            return refuse_blocked<kIsa>(d.format, o);
          },
          BlockedOutProj<kIsa>::run};
}

constexpr OutProjKernel kKernels[] = {
    row<cpu::Isa::kAvx512>("avx512_float"),
    row<cpu::Isa::kAvx2>("avx2_float"),
    row<cpu::Isa::kNeon>("neon_float"),
    {"ref", [](const OutProjDesc&, const KernelOptions& o) { return refuse_ref(o); },
     ref::out_proj},
};

}  // namespace

std::span<const OutProjKernel> out_proj_kernels() { return kKernels; }

void out_proj(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out, const Step& s) {
  cx.plan->row<OutProjKernel>(Op::kOutProj, cx.layer, s.num_tokens).run(cx, d, att, out, s);
}

int64_t bytes(const OutProjDesc& d, int64_t tokens) {
  return format_bytes(d.format, d.hidden * d.width) + 2 * d.hidden +
         tokens * 4 * (d.hidden + d.width);
}

int64_t flops(const OutProjDesc& d, int64_t tokens) { return 2 * tokens * d.hidden * d.width; }

}  // namespace nibble::ops
