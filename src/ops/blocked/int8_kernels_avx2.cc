// int8 products for AVX2. From the pragma on, to the end of the file (where templates are
// instantiated), this file may use its instructions; what other files share is included before.
#if defined(__x86_64__)
#include <immintrin.h>

#include <bit>
#include <cmath>

#include "formats/int8.h"
#include "formats/mxfp4.h"
#include "ops/blocked/int8_kernels.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#include "cpu/simd_int8_avx2.h"
#include "ops/blocked/int8_kernels_impl.h"

namespace nibble::ops {

extern const Int8Kernels kAvx2Int8Kernels;
constinit const Int8Kernels kAvx2Int8Kernels = make_int8_kernels<cpu::Avx2Int8<false>>();

}  // namespace nibble::ops

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
