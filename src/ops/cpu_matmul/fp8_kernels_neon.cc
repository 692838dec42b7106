// MXFP8 panels for NEON, which every arm64 CPU has.
#if defined(__aarch64__)
#include "cpu/simd_neon.h"
#include "ops/cpu_matmul/fp8_kernels_impl.h"

namespace nibble::ops {

extern const Fp8Kernels kNeonFp8Kernels;
constinit const Fp8Kernels kNeonFp8Kernels = make_fp8_kernels<cpu::Neon>();

}  // namespace nibble::ops
#endif
