// Panels by float32 activations, for AVX-512. What other files share is included before
// NIBBLE_TARGET (cpu/simd_target.h).
#if defined(__x86_64__)
#include <immintrin.h>

#include "cpu/simd_target.h"
#include "formats/fp8_block.h"
#include "formats/mxfp4.h"
#include "ops/cpu_matmul/float_panel_kernels.h"

NIBBLE_TARGET(NIBBLE_AVX512)

#include "cpu/simd_avx512.h"
#include "ops/cpu_matmul/float_panel_kernels_impl.h"

namespace nibble::ops {

extern const FloatPanelKernels kAvx512FloatPanels;
constinit const FloatPanelKernels kAvx512FloatPanels = make_float_panel_kernels<cpu::Avx512>();

}  // namespace nibble::ops

NIBBLE_TARGET_END
#endif
