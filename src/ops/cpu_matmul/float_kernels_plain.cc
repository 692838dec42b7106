// The blocked float path in plain C++, for CPUs without the instructions of the others.
#include "cpu/simd_plain.h"
#include "ops/attention/attend_impl.h"
#include "ops/cpu_matmul/float_kernels_impl.h"
#include "ops/delta_rule/delta_rule_impl.h"
#include "ops/mamba2/mamba2_impl.h"

namespace nibble::ops {

extern const FloatKernels kPlainKernels;
constinit const FloatKernels kPlainKernels = make_float_kernels<cpu::Plain>(
    Attend<cpu::Plain>::run, DeltaRuleOn<cpu::Plain>::kernels(), Mamba2On<cpu::Plain>::kernels());

}  // namespace nibble::ops
