// For tests of recurrent layers' ops on a GPU: a problem's copy there, whatever the op.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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

// Of chunks: how far one head, or its state, is from a twin in double. Each of what it is the sum
// of carries up to `roundings` of 2^-11, of either sign, so the root of their mean square is below
// so many of them times that of the values, and none is beyond eight times that of the largest.
class ChunkErrors {
 public:
  void add(double got, double want) {
    const double off = got - want;
    squares_ += off * off, wants_ += want * want, ++n_;
    most_ = std::max(most_, std::fabs(off)), largest_ = std::max(largest_, std::fabs(want));
  }
  // `stored`: what rounding the value itself adds.
  void check(int roundings, double stored) const {
    const double unit = roundings * 0x1p-11;
    EXPECT_LE(std::sqrt(squares_ / n_), (unit + stored) * std::sqrt(wants_ / n_));
    EXPECT_LE(most_, (8 * unit + stored) * largest_);
  }

 private:
  double squares_ = 0, wants_ = 0, most_ = 0, largest_ = 0;
  int64_t n_ = 0;
};

// Heads of `columns` outputs, and of states of so many rows.
template <typename Problem>
void compare_chunks(const Problem& want, const std::vector<float>& att,
                    const std::vector<float>& states, int64_t heads, int64_t columns, int64_t rows,
                    int roundings) {
  for (const Span& span : want.spans)
    for (int64_t h = 0; h < heads; ++h) {
      ChunkErrors of_att, of_state;
      for (int64_t t = span.q_start; t < span.q_start + span.q_len; ++t)
        for (int64_t i = (t * heads + h) * columns; i < (t * heads + h + 1) * columns; ++i)
          of_att.add(att[i], want.att[i]);
      const int64_t head = rows * columns, first = (want.to[span.slot] * heads + h) * head;
      for (int64_t i = first; i < first + head; ++i) of_state.add(states[i], want.states[i]);
      SCOPED_TRACE(testing::Message()
                   << "sequence " << span.slot << " of " << span.q_len << " tokens, head " << h);
      of_att.check(roundings, 0x1p-9);  // stored in bf16
      of_state.check(roundings, 0);
    }
}

}  // namespace nibble::ops
