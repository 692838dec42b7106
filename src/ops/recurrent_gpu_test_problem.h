// For tests of recurrent layers' ops on a GPU: a problem's copy there, whatever the op.
#pragma once

#include <utility>
#include <vector>

#include "ops/gpu_test_problem.h"

namespace nibble::ops {

// Problem: DeltaProblem or MambaProblem. inputs_on() and weights_on() copy what is its own,
// out_width() is that of a token's output.
template <typename Problem>
struct OnGpu {
  OnGpu(Problem& p, GpuProblem& gpu)
      : p(p),
        layer(p.layer()),
        in(inputs_on(gpu, p)),
        weights(weights_on(gpu, p)),
        att(gpu.output(DType::kBF16, {p.desc.tokens, out_width(p.desc)})),
        step(gpu.step(p.step)) {
    layer.state = gpu.tensor(layer.state), layer.conv = gpu.tensor(layer.conv);
    layer.from = gpu.array(p.from), layer.to = gpu.array(p.to);
  }
  template <typename Row>
  void run(GpuProblem& gpu, const Row& row) const {
    row.run(gpu.cx, att, layer, in, p.desc, weights, step);
  }

  Problem& p;
  RecurrentLayer layer;
  decltype(std::declval<Problem&>().in()) in;
  decltype(Problem::weights) weights;
  Tensor att;
  Step step;
};

inline std::vector<float> flat(GpuProblem& gpu, Tensor t) {
  const int64_t n = t.num_elements();
  return gpu.floats(make_tensor(t.data, t.dtype, {1, n})).values;
}

}  // namespace nibble::ops
