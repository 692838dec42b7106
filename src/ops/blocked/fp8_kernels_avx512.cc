// MXFP8 panels for AVX-512. From the pragma on, to the end of the file (where templates are
// instantiated), this file may use its instructions; what other files share is included before.
#if defined(__x86_64__)
#include <immintrin.h>

#include "formats/mxfp4.h"
#include "ops/blocked/fp8_kernels.h"

#if defined(__clang__)
#pragma clang attribute push(                                                    \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq"))), \
    apply_to = function)
#else
// gcc 12 takes the "undefined" operand inside its own intrinsics for a bug (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")
#endif

#include "cpu/simd_avx512.h"
#include "ops/blocked/fp8_kernels_impl.h"

namespace nibble::ops {

extern const Fp8Kernels kAvx512Fp8Kernels;
constinit const Fp8Kernels kAvx512Fp8Kernels = make_fp8_kernels<cpu::Avx512>();

}  // namespace nibble::ops

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
