// How gemv_chosen.cuh shares out the row tiles of the experts that tokens have chosen: pure
// functions of shape and GPU, for the tables and the launch.
#pragma once

#include <algorithm>
#include <cstdint>

namespace nibble::ops::gpu {

// Row tiles of experts that a block multiplies, at most: of the only token of a step, whose code
// has a lane for each, and of one of several.
inline constexpr int kMostOfOne = 32, kMaxItems = 48;

struct ChosenShape {
  bool is_sum;    // over a token's experts, of which two blocks have half each
  int row_tiles;  // of an expert
  int top_k;
  int tokens;  // of the step, each with its share of the GPU's blocks
};

struct ChosenPlan {
  int together;  // blocks that share row tiles
  int blocks;    // such groups of a token
  int items;     // of a block, at most
  int of_sm;     // blocks that are to lie on an SM
  // Whether all blocks run at once.
  bool fits(const ChosenShape& s, int num_sms) const {
    return blocks * together * s.tokens <= of_sm * num_sms;
  }
};

// One block an SM leaves room for the next kernel's, whose weights are on their way then; two have
// twice the warps, which gains more from 4 tokens on.
inline ChosenPlan plan_chosen(const ChosenShape& s, int num_sms) {
  const int together = s.is_sum ? 2 : 1, of_sm = s.tokens < 4 ? 1 : 2;
  const int tiles = s.is_sum ? s.row_tiles : s.row_tiles * s.top_k;
  const int of_tile = s.is_sum ? (s.top_k + 1) / 2 : 1;
  const int most = (s.tokens == 1 ? kMostOfOne : kMaxItems) / of_tile;
  const int blocks = std::max(std::clamp(of_sm * num_sms / s.tokens / together, 1, tiles),
                              (tiles + most - 1) / most);
  return {together, blocks, (tiles + blocks - 1) / blocks * of_tile, of_sm};
}

}  // namespace nibble::ops::gpu
