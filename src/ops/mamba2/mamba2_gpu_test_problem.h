// For tests of mamba2 on a GPU.
#pragma once

#include <string_view>
#include <vector>

#include "ops/mamba2/mamba2_test_problem.h"
#include "ops/recurrent_gpu_test_problem.h"

namespace nibble::ops {

inline Tensor inputs_on(GpuProblem& gpu, MambaProblem& p) { return gpu.tensor(p.in()); }
inline Mamba2Weights weights_on(GpuProblem& gpu, const MambaProblem& p) {
  return {gpu.array(p.conv),    gpu.array(p.conv_bias), gpu.array(p.a_log), gpu.array(p.skip),
          gpu.array(p.dt_bias), gpu.array(p.norm),      p.weights.eps};
}
inline int64_t out_width(const Mamba2Desc& d) { return d.inner(); }

// A row by its name, whatever the number of tokens.
inline const Mamba2Kernel& row_named(std::string_view name, const Mamba2Desc& desc,
                                     const GpuProblem& gpu) {
  KernelOptions options = gpu.cx.kernels;
  options.any_size = true;
  for (const Mamba2Kernel* row : kernels_here(mamba2_kernels(), desc, options))
    if (row->name == name) return *row;
  CHECK(false);
}

}  // namespace nibble::ops
