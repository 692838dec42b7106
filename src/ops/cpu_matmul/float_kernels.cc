#include "ops/cpu_matmul/float_kernels.h"

#include "base/check.h"

namespace nibble::ops {

extern const FloatKernels kAvx512Kernels, kAvx2Kernels, kNeonKernels, kPlainKernels;

const FloatKernels& float_kernels(cpu::Isa isa) {
  if (isa == cpu::Isa::kScalar) return kPlainKernels;
#if defined(__x86_64__)
  if (isa == cpu::Isa::kAvx512) return kAvx512Kernels;
  if (isa == cpu::Isa::kAvx2) return kAvx2Kernels;
#elif defined(__aarch64__)
  if (isa == cpu::Isa::kNeon) return kNeonKernels;
#endif
  CHECK(!"no float kernels for this instruction set");
  __builtin_unreachable();
}

int64_t attend_scratch_floats(int64_t rows, int64_t head_dim) {
  constexpr int64_t kMostLanes = 16;
  const int64_t padded = (head_dim + kMostLanes - 1) / kMostLanes * kMostLanes;
  return kKeyBlock * (head_dim + padded + rows) + rows * (padded + head_dim + 2);
}

}  // namespace nibble::ops
