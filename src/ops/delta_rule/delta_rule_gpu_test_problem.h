// For tests of delta_rule on a GPU.
#pragma once

#include <vector>

#include "ops/delta_rule/delta_rule_test_problem.h"
#include "ops/recurrent_gpu_test_problem.h"

namespace nibble::ops {

inline DeltaRuleIn inputs_on(GpuProblem& gpu, DeltaProblem& p) {
  return {gpu.tensor(p.in().qkvz), gpu.tensor(p.in().gates)};
}
inline DeltaRuleWeights weights_on(GpuProblem& gpu, const DeltaProblem& p) {
  return {gpu.array(p.conv), gpu.array(p.a_log), gpu.array(p.dt_bias), gpu.array(p.norm),
          p.weights.eps};
}
inline int64_t out_width(const DeltaRuleDesc& d) { return d.value_width(); }

// All rows that can do it, whatever the number of tokens.
inline std::vector<const DeltaRuleKernel*> rows_of(const DeltaRuleDesc& desc,
                                                   const GpuProblem& gpu) {
  KernelOptions options = gpu.cx.kernels;
  options.any_size = true;
  return kernels_here(delta_rule_kernels(), desc, options);
}

}  // namespace nibble::ops
