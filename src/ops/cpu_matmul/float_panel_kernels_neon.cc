// Panels by float32 activations, for NEON, which every arm64 CPU has.
#if defined(__aarch64__)
#include "cpu/simd_neon.h"
#include "ops/cpu_matmul/float_panel_kernels_impl.h"

namespace nibble::ops {

extern const FloatPanelKernels kNeonFloatPanels;
constinit const FloatPanelKernels kNeonFloatPanels = make_float_panel_kernels<cpu::Neon>();

}  // namespace nibble::ops
#endif
