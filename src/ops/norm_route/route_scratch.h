// Working memory of norm_route's CUDA rows.
#pragma once

#include <cstdint>

#include "ops/scratch.h"

namespace nibble::ops::gpu {

// Of a row of tile_counts: choices of experts in a tile of tokens.
constexpr int tile_pitch(int64_t experts) { return static_cast<int>((experts + 3) / 4 * 4); }

struct RouteScratch {
  static constexpr int kMinTileTokens = 16;

  RouteScratch(Scratch s, int64_t tokens, int64_t experts)
      : logits(s.take<float>(tokens * experts)),
        gate_logits(s.take<float>(tokens)),
        tile_counts(
            s.take<uint16_t>((tokens + kMinTileTokens - 1) / kMinTileTokens * tile_pitch(experts))),
        used_bytes(s.used_bytes()) {}
  float* logits;          // [T, E]
  float* gate_logits;     // [T], of a shared expert
  uint16_t* tile_counts;  // [tiles of tokens, tile_pitch(E)]
  int64_t used_bytes;
};

}  // namespace nibble::ops::gpu
