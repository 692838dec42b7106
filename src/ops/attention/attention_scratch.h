// Working memory of attention's CUDA rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/scratch.h"

namespace nibble::ops::gpu {

// Keys of a token are split among at most kMaxSplits blocks, or its share of kParts warps, each of
// which leaves a part: weighted values, largest score and sum of exponentials of up to kHeads query
// heads. `columns`: KV heads, each as often as kHeads go into its group. Blocks take tokens kSlab
// at a time.
struct AttentionScratch {
  static constexpr int kMaxSplits = 32;
  static constexpr int kHeads = 8;
  static constexpr int kSlab = 128;
  static constexpr int64_t kParts = kSlab * kMaxSplits;  // of a column

  AttentionScratch(Scratch s, int64_t rows, int64_t columns, int64_t head_dim)
      : num_parts(std::min(rows * kMaxSplits, kParts) * columns * kHeads),
        parts(s.take<float>(num_parts * head_dim)),
        part_sums(s.take<float>(num_parts * 2)),
        used_bytes(s.used_bytes()) {}
  int64_t num_parts;
  float* parts;      // [rows, columns, splits, kHeads, D]
  float* part_sums;  // [rows, columns, splits, kHeads, 2]
  int64_t used_bytes;
};

}  // namespace nibble::ops::gpu
