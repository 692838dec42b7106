// How the general CUDA row of attention cuts the keys of a token, and its working memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/attention/attention.h"
#include "ops/scratch.h"

namespace nibble::ops::gpu {

// Keys are cut at absolute positions, so that a token's sums are made alike in any batch: 16 splits
// of 1,024 keys, 14 of 8,192 (up to 131,072 keys), 30 of 65,536, and one of all that follow.
struct KeySplits {
  static constexpr int32_t kShort = 1024, kMiddle = 8192, kLong = 65536;
  static constexpr int32_t kShortEnd = 16 * kShort, kMiddleEnd = 131072;
  static constexpr int32_t kFirstMiddle = kShortEnd / kShort;
  static constexpr int32_t kFirstLong = kFirstMiddle + (kMiddleEnd - kShortEnd) / kMiddle;
  static constexpr int32_t kMost = kFirstLong + 31;

  // The split that position `key` is in, and the first key of a split.
#ifdef __CUDACC__
  __host__ __device__
#endif
      static constexpr int32_t
      of(int32_t key) {
    if (key < kShortEnd) return key / kShort;
    if (key < kMiddleEnd) return kFirstMiddle + (key - kShortEnd) / kMiddle;
    const int32_t split = kFirstLong + (key - kMiddleEnd) / kLong;
    return split < kMost ? split : kMost - 1;
  }
#ifdef __CUDACC__
  __host__ __device__
#endif
      static constexpr int32_t
      begin(int32_t split) {
    if (split < kFirstMiddle) return split * kShort;
    if (split < kFirstLong) return kShortEnd + (split - kFirstMiddle) * kMiddle;
    return split < kMost ? kMiddleEnd + (split - kFirstLong) * kLong : INT32_MAX;
  }
};

// What the splits of a token leave: weighted values, and largest score and sum of weights.
struct AnyAttentionScratch {
  static constexpr int64_t kMostFloats = int64_t{1} << 24;

  AnyAttentionScratch(Scratch s, int64_t rows, int64_t q_heads, int64_t head_dim)
      : tokens(std::min(
            rows, std::max<int64_t>(1, kMostFloats / (q_heads * KeySplits::kMost * head_dim)))),
        parts(s.take<float>(tokens * q_heads * KeySplits::kMost * head_dim)),
        part_sums(s.take<float>(tokens * q_heads * KeySplits::kMost * 2)),
        used_bytes(s.used_bytes()) {}
  int64_t tokens;    // of a launch
  float* parts;      // [tokens, Q, splits, D]
  float* part_sums;  // [tokens, Q, splits, 2]
  int64_t used_bytes;
};

}  // namespace nibble::ops::gpu
