#include "cpu/thread_pool.h"
#include "ops/cpu_matmul/float_kernels.h"
#include "ops/output_gate/output_gate.h"
#include "ops/store.h"

namespace nibble::ops {

template <cpu::Isa kIsa>
void CpuOutputGate<kIsa>::run(Ctx& cx, const Tensor& att, const Tensor& gate) {
  const FloatKernels& floats = float_kernels(kIsa);
  const int64_t width = att.dim(1);
  cx.pool->parallel_for(att.dim(0), 1, [&](int64_t t, int64_t end, int) {
    for (; t < end; ++t) {
      float* row = att.as<float>() + t * width;
      floats.gate(row, gate.as<float>() + t * width, width);
      if (cx.activations == DType::kBF16)
        for (int64_t i = 0; i < width; ++i) row[i] = stored(cx.activations, row[i]);
    }
  });
}

template struct CpuOutputGate<cpu::Isa::kAvx512>;
template struct CpuOutputGate<cpu::Isa::kAvx2>;
template struct CpuOutputGate<cpu::Isa::kNeon>;
template struct CpuOutputGate<cpu::Isa::kScalar>;

}  // namespace nibble::ops
