// sample_drawn: for each row of logits one id drawn at random, on the GPU, for rows whose request
// asks for a temperature. As the engine's sampler: of the ids that are not `never`, those within
// min_p of the likeliest, of these the top_k largest, of these the fewest largest whose weights
// reach top_p of the sum; weight = exp((logit - largest) / temperature); the id where the sum over
// ids in order passes u times the sum of all. Weights are rounded to multiples of 2^-44, so that
// sums are exact in any order: the same row and u give the same id.
#pragma once

#include "ops/sample/sample.h"

namespace nibble::ops {

struct Draw {
  float temperature = 0;  // 0: nothing is drawn for the row
  float min_p = 0;
  float top_p = 1;
  int32_t top_k = 0;  // 0: all
  double u = 0;       // [0, 1)
};

// Behind sample_greedy of the same rows, whose scratch it reads: logits [R, V] f32; never as there;
// draws [R] in memory that the device reads. Writes out.rows and out.ids of the rows that draw, and
// nothing of the others.
using SampleDrawnFn = void(Ctx& cx, const GreedyOut& out, const Tensor& logits,
                           const uint32_t* never, const Draw* draws);

SampleDrawnFn sample_drawn;  // GPUs only
// Over ranks each of which has columns of its own, from out.first_id on, and the same draws: behind
// join_greedy, on all of them at once. The same ids on each, to the bit those of a rank that has
// the whole row. GPUs whose memory they share only.
SampleDrawnFn sample_drawn_over_ranks;
namespace gpu {
SampleDrawnFn sample_drawn;
SampleDrawnFn sample_drawn_over_ranks;
}  // namespace gpu
}  // namespace nibble::ops
