// Working memory of norm_route's CUDA rows.
#pragma once

#include <cstdint>

#include "ops/scratch.h"

namespace nibble::ops::gpu {

struct RouteScratch {
  static constexpr int kMinTileTokens = 8;

  RouteScratch(Scratch s, int64_t tokens, int64_t experts)
      : logits(s.take<float>(tokens * experts)),
        tile_counts(s.take<int32_t>((tokens + kMinTileTokens - 1) / kMinTileTokens * experts)),
        used_bytes(s.used_bytes()) {}
  float* logits;         // [T, E]
  int32_t* tile_counts;  // [tiles of tokens, E]
  int64_t used_bytes;
};

}  // namespace nibble::ops::gpu
