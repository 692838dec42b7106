#include "ops/cpu_matmul/fp8_kernels.h"

#include "base/check.h"

namespace nibble::ops {

extern const Fp8Kernels kAvx512Fp8Kernels, kAvx2Fp8Kernels, kNeonFp8Kernels;

const Fp8Kernels& fp8_kernels(cpu::Isa isa) {
#if defined(__x86_64__)
  if (isa == cpu::Isa::kAvx512) return kAvx512Fp8Kernels;
  if (isa == cpu::Isa::kAvx2) return kAvx2Fp8Kernels;
#elif defined(__aarch64__)
  if (isa == cpu::Isa::kNeon) return kNeonFp8Kernels;
#endif
  CHECK(!"no MXFP8 kernels for this instruction set");
  __builtin_unreachable();
}

}  // namespace nibble::ops
