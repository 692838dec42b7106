// int8 products for AVX-512 VNNI. What other files share is included before
// NIBBLE_TARGET (cpu/simd_target.h).
#if defined(__x86_64__)
#include <immintrin.h>

#include <bit>
#include <cmath>

#include "cpu/simd_target.h"
#include "formats/int8.h"
#include "formats/mxfp4.h"
#include "ops/cpu_matmul/int8_kernels.h"

NIBBLE_TARGET(NIBBLE_AVX512 ",avx512vnni,avx512vbmi")

#include "cpu/simd_int8_avx512.h"
#include "ops/cpu_matmul/int8_kernels_impl.h"

namespace nibble::ops {

extern const Int8KernelSet kAvx512VnniKernels;
constinit const Int8KernelSet kAvx512VnniKernels = make_int8_kernels<cpu::Avx512Vnni>();

}  // namespace nibble::ops

NIBBLE_TARGET_END
#endif
