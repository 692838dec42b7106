// For tests of delta_rule on a GPU.
#pragma once

#include <vector>

#include "ops/delta_rule/delta_rule_test_problem.h"
#include "ops/gpu_test_problem.h"

namespace nibble::ops {

// A problem's copy on the GPU.
struct OnGpu {
  OnGpu(DeltaProblem& p, GpuProblem& gpu)
      : p(p),
        layer(p.layer()),
        in{gpu.tensor(p.in().qkvz), gpu.tensor(p.in().gates)},
        weights{gpu.array(p.conv), gpu.array(p.a_log), gpu.array(p.dt_bias), gpu.array(p.norm),
                p.weights.eps},
        att(gpu.output(DType::kBF16, {p.desc.tokens, p.desc.value_width()})),
        step(gpu.step(p.step)) {
    layer.state = gpu.tensor(layer.state), layer.conv = gpu.tensor(layer.conv);
    layer.from = gpu.array(p.from), layer.to = gpu.array(p.to);
  }
  void run(GpuProblem& gpu, const DeltaRuleKernel& row) const {
    row.run(gpu.cx, att, layer, in, p.desc, weights, step);
  }

  DeltaProblem& p;
  RecurrentLayer layer;
  DeltaRuleIn in;
  DeltaRuleWeights weights;
  Tensor att;
  Step step;
};

inline std::vector<float> flat(GpuProblem& gpu, Tensor t) {
  const int64_t n = t.num_elements();
  return gpu.floats(make_tensor(t.data, t.dtype, {1, n})).values;
}

// All rows that can do it, whatever the number of tokens.
inline std::vector<const DeltaRuleKernel*> rows_of(const DeltaRuleDesc& desc,
                                                   const GpuProblem& gpu) {
  KernelOptions options = gpu.cx.kernels;
  options.any_size = true;
  return kernels_here(delta_rule_kernels(), desc, options);
}

}  // namespace nibble::ops
