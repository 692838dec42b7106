// What the blocks of one row leave for the last of them, and that one, in the place of the first
// part, for join_greedy and sample_drawn: the same of the whole row. join_greedy leaves there that
// of the row over all ranks.
#pragma once

#include <cstdint>

#include "ops/scratch.h"

namespace nibble::ops {

inline constexpr int kSampleParts = 128;  // blocks a row, at most

// Of a part of a row. best < 0: Greedy's codes.
struct alignas(16) SamplePart {
  float best_logit;
  int32_t best;
  float largest;  // of all, masked ones included
  float sum;      // of exp(logit - largest)
};

struct SampleScratch {
  SampleScratch(Scratch s, int64_t rows)
      : parts(s.take<SamplePart>(rows * kSampleParts)), used_bytes(s.used_bytes()) {}
  SamplePart* parts;  // [R, kSampleParts]
  int64_t used_bytes;
};

}  // namespace nibble::ops
