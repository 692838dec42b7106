// For tests of mamba2 on a GPU.
#pragma once

#include <string_view>
#include <vector>

#include "ops/gpu_test_problem.h"
#include "ops/mamba2/mamba2_test_problem.h"

namespace nibble::ops {

// A problem's copy on the GPU.
struct OnGpu {
  OnGpu(MambaProblem& p, GpuProblem& gpu)
      : p(p),
        layer(p.layer()),
        in(gpu.tensor(p.in())),
        weights{gpu.array(p.conv),    gpu.array(p.conv_bias), gpu.array(p.a_log), gpu.array(p.skip),
                gpu.array(p.dt_bias), gpu.array(p.norm),      p.weights.eps},
        att(gpu.output(DType::kBF16, {p.desc.tokens, p.desc.inner()})),
        step(gpu.step(p.step)) {
    layer.state = gpu.tensor(layer.state), layer.conv = gpu.tensor(layer.conv);
    layer.from = gpu.array(p.from), layer.to = gpu.array(p.to);
  }
  void run(GpuProblem& gpu, const Mamba2Kernel& row) const {
    row.run(gpu.cx, att, layer, in, p.desc, weights, step);
  }

  MambaProblem& p;
  RecurrentLayer layer;
  Tensor in;
  Mamba2Weights weights;
  Tensor att;
  Step step;
};

inline std::vector<float> flat(GpuProblem& gpu, Tensor t) {
  const int64_t n = t.num_elements();
  return gpu.floats(make_tensor(t.data, t.dtype, {1, n})).values;
}

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
