// The blocked float path for NEON, which every arm64 CPU has.
#if defined(__aarch64__)
#include "cpu/simd_neon.h"
#include "ops/attention/attend_impl.h"
#include "ops/cpu_matmul/float_kernels_impl.h"

namespace nibble::ops {

extern const FloatKernels kNeonKernels;
constinit const FloatKernels kNeonKernels = make_float_kernels<cpu::Neon>(Attend<cpu::Neon>::run);

}  // namespace nibble::ops
#endif
