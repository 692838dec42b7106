// int8 products for NEON with dot products (Armv8.2). From NIBBLE_TARGET on this file may use them.
#if defined(__aarch64__)
#include <arm_neon.h>

#include <bit>
#include <cmath>

#include "cpu/simd_target.h"
#include "formats/int8.h"
#include "ops/cpu_matmul/int8_kernels.h"

NIBBLE_TARGET(NIBBLE_NEON_DOT)

#include "cpu/simd_int8_neon.h"
#include "ops/cpu_matmul/int8_kernels_impl.h"

namespace nibble::ops {

extern const Int8KernelSet kNeonDotKernels;
constinit const Int8KernelSet kNeonDotKernels = make_int8_kernels<cpu::NeonDot>();

}  // namespace nibble::ops

NIBBLE_TARGET_END
#endif
