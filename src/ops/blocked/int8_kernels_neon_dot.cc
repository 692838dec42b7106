// int8 products for NEON with dot products (Armv8.2). From the pragma on this file may use them.
#if defined(__aarch64__)
#include <arm_neon.h>

#include <bit>
#include <cmath>

#include "formats/int8.h"
#include "ops/blocked/int8_kernels.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif

#include "cpu/simd_int8_neon.h"
#include "ops/blocked/int8_kernels_impl.h"

namespace nibble::ops {

extern const Int8Kernels kNeonDotKernels;
constinit const Int8Kernels kNeonDotKernels = make_int8_kernels<cpu::NeonDot>();

}  // namespace nibble::ops

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
