// The blocked float path for Avx2. From the pragma on, to the end of the file (where templates are
// instantiated), this file may use its instructions; what other files share is included before.
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "formats/bf16.h"
#include "formats/mxfp4.h"
#include "ops/blocked/float_kernels.h"
#include "ops/kv_pages.h"
#include "ops/moe_up/moe_up.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#include "cpu/simd_avx2.h"
#include "ops/blocked/attend_impl.h"
#include "ops/blocked/float_kernels_impl.h"

namespace nibble::ops {

extern const FloatKernels kAvx2Kernels;
constinit const FloatKernels kAvx2Kernels = make_float_kernels<cpu::Avx2>(Attend<cpu::Avx2>::run);

}  // namespace nibble::ops

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
