// The blocked float path for NEON, which every arm64 CPU has.
#if defined(__aarch64__)
#include "cpu/simd_neon.h"
#include "ops/attention/attend_impl.h"
#include "ops/cpu_matmul/float_kernels_impl.h"
#include "ops/delta_rule/delta_rule_impl.h"
#include "ops/mamba2/mamba2_impl.h"

namespace nibble::ops {

extern const FloatKernels kNeonKernels;
constinit const FloatKernels kNeonKernels = make_float_kernels<cpu::Neon>(
    Attend<cpu::Neon>::run, DeltaRuleOn<cpu::Neon>::kernels(), Mamba2On<cpu::Neon>::kernels());

}  // namespace nibble::ops
#endif
