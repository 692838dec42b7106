// Working memory of attention's CUDA rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/scratch.h"

namespace nibble::ops::gpu {

// Keys of a token are split among at most kMaxSplits blocks, each of which leaves a part: weighted
// values, largest score and sum of exponentials of up to kMaxGroup query heads of 64 dims. Tokens
// are taken kSlab at a time.
struct AttentionScratch {
  static constexpr int kMaxSplits = 32;
  static constexpr int kMaxGroup = 8;
  static constexpr int kDim = 64;
  static constexpr int kSlab = 128;

  AttentionScratch(Scratch s, int64_t rows, int64_t kv_heads)
      : num_parts(std::min<int64_t>(rows, kSlab) * kv_heads * kMaxSplits * kMaxGroup),
        parts(s.take<float>(num_parts * kDim)),
        part_sums(s.take<float>(num_parts * 2)),
        used_bytes(s.used_bytes()) {}
  int64_t num_parts;
  float* parts;      // [rows, G, kMaxSplits, kMaxGroup, kDim]
  float* part_sums;  // [rows, G, kMaxSplits, kMaxGroup, 2]
  int64_t used_bytes;
};

}  // namespace nibble::ops::gpu
