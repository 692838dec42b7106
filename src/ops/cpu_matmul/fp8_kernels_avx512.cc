// MXFP8 panels for AVX-512. What other files share is included before
// NIBBLE_TARGET (cpu/simd_target.h).
#if defined(__x86_64__)
#include <immintrin.h>

#include "cpu/simd_target.h"
#include "formats/mxfp4.h"
#include "ops/cpu_matmul/fp8_kernels.h"

NIBBLE_TARGET(NIBBLE_AVX512)

#include "cpu/simd_avx512.h"
#include "ops/cpu_matmul/fp8_kernels_impl.h"

namespace nibble::ops {

extern const Fp8Kernels kAvx512Fp8Kernels;
constinit const Fp8Kernels kAvx512Fp8Kernels = make_fp8_kernels<cpu::Avx512>();

}  // namespace nibble::ops

NIBBLE_TARGET_END
#endif
