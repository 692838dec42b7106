// Panels by float32 activations, for AVX2. What other files share is included before
// NIBBLE_TARGET (cpu/simd_target.h).
#if defined(__x86_64__)
#include <immintrin.h>

#include "cpu/simd_target.h"
#include "formats/fp8_block.h"
#include "formats/mxfp4.h"
#include "ops/cpu_matmul/float_panel_kernels.h"

NIBBLE_TARGET(NIBBLE_AVX2)

#include "cpu/simd_avx2.h"
#include "ops/cpu_matmul/float_panel_kernels_impl.h"

namespace nibble::ops {

extern const FloatPanelKernels kAvx2FloatPanels;
constinit const FloatPanelKernels kAvx2FloatPanels = make_float_panel_kernels<cpu::Avx2>();

}  // namespace nibble::ops

NIBBLE_TARGET_END
#endif
