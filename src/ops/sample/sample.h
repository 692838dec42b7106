// sample_greedy: for each row of logits the likeliest id and its log-probability, on the GPU: rows
// that nothing else is asked of need not leave it.
//   id = argmax over ids that are not `never`, the lowest of equals
//   logprob = logits[id] - log(sum over all ids of exp(logits))
#pragma once

#include <cstdint>

#include "ops/ctx.h"
#include "ops/scratch.h"

namespace nibble::ops {

struct Greedy {
  static constexpr int32_t kNotFinite = -1;  // some logit of the row is not
  static constexpr int32_t kNone = -2;       // every id is masked

  int32_t id;
  float logprob;
};

// Two places for results, so that a step can run while those of the one before are read.
struct GreedyOut {
  Greedy* rows = nullptr;         // [2, stride], in memory that the host reads
  int64_t stride = 0;             // at least R
  const int32_t* turn = nullptr;  // 0 or 1: which of the two
  int32_t* ids = nullptr;         // [R], or none: the ids once more, as the tokens of a next step
  int32_t first_id = 0;           // of the logits' first column: of a rank that has a part of them
};

// logits [R, V] f32; never [ceil(V / 32)] bit per id, or none.
using SampleGreedyFn = void(Ctx& cx, const GreedyOut& out, const Tensor& logits,
                            const uint32_t* never);

// Behind sample_greedy of each rank's columns: the same of those of all ranks, on each; GPUs whose
// memory they share only.
using JoinGreedyFn = void(Ctx& cx, const GreedyOut& out, int64_t rows);

SampleGreedyFn sample_greedy;
JoinGreedyFn join_greedy;
namespace gpu {
SampleGreedyFn sample_greedy;
JoinGreedyFn join_greedy;
int64_t sample_scratch_bytes(int64_t rows);
}  // namespace gpu
namespace ref {
SampleGreedyFn sample_greedy;
}
}  // namespace nibble::ops
