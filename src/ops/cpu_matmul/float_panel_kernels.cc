#include "ops/cpu_matmul/float_panel_kernels.h"

#include "base/check.h"

namespace nibble::ops {

extern const FloatPanelKernels kAvx512FloatPanels, kAvx2FloatPanels, kNeonFloatPanels;

const FloatPanelKernels& float_panel_kernels(cpu::Isa isa) {
#if defined(__x86_64__)
  if (isa == cpu::Isa::kAvx512) return kAvx512FloatPanels;
  if (isa == cpu::Isa::kAvx2) return kAvx2FloatPanels;
#elif defined(__aarch64__)
  if (isa == cpu::Isa::kNeon) return kNeonFloatPanels;
#endif
  CHECK(!"no kernels of panels for this instruction set");
  __builtin_unreachable();
}

}  // namespace nibble::ops
