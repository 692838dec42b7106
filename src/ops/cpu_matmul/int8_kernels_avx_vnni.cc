// int8 products for AVX-VNNI. What other files share is included before
// NIBBLE_TARGET (cpu/simd_target.h).
#if defined(__x86_64__)
#include <immintrin.h>

#include <bit>
#include <cmath>

#include "cpu/simd_target.h"
#include "formats/int8.h"
#include "formats/mxfp4.h"
#include "ops/cpu_matmul/int8_kernels.h"

NIBBLE_TARGET(NIBBLE_AVX2 ",avxvnni")

#include "cpu/simd_int8_avx2.h"
#include "ops/cpu_matmul/int8_kernels_impl.h"

namespace nibble::ops {

extern const Int8KernelSet kAvxVnniKernels;
constinit const Int8KernelSet kAvxVnniKernels = make_int8_kernels<cpu::Avx2Int8<true>>();

}  // namespace nibble::ops

NIBBLE_TARGET_END
#endif
