// MXFP8 panels for AVX2. From the pragma on, to the end of the file (where templates are
// instantiated), this file may use its instructions; what other files share is included before.
#if defined(__x86_64__)
#include <immintrin.h>

#include "formats/mxfp4.h"
#include "ops/blocked/fp8_kernels.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#include "cpu/simd_avx2.h"
#include "ops/blocked/fp8_kernels_impl.h"

namespace nibble::ops {

extern const Fp8Kernels kAvx2Fp8Kernels;
constinit const Fp8Kernels kAvx2Fp8Kernels = make_fp8_kernels<cpu::Avx2>();

}  // namespace nibble::ops

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
