#include "ops/cpu_matmul/int8_kernels.h"

#include "base/check.h"

namespace nibble::ops {

extern const Int8KernelSet kAvx512VnniKernels, kAvxVnniKernels, kAvx2Int8Kernels, kNeonDotKernels;

const Int8KernelSet& int8_kernels(cpu::Isa isa) {
#if defined(__x86_64__)
  if (isa == cpu::Isa::kAvx512Vnni) return kAvx512VnniKernels;
  if (isa == cpu::Isa::kAvxVnni) return kAvxVnniKernels;
  if (isa == cpu::Isa::kAvx2) return kAvx2Int8Kernels;
#elif defined(__aarch64__)
  if (isa == cpu::Isa::kNeonDot) return kNeonDotKernels;
#endif
  CHECK(!"no int8 kernels for this instruction set");
  __builtin_unreachable();
}

}  // namespace nibble::ops
