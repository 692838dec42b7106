// The choices of many tokens seen from the experts (ops/routing.h), for the CUDA rows of norm_route
// that leave it to a launch of its own.
#pragma once

#include <cstdint>

#include "ops/ctx.h"
#include "ops/routing.h"

namespace nibble::ops::gpu {

// The most choices that a block of the sort takes: whole tiles of tokens.
inline constexpr int kSortedChoices = 1024;

// Fills counts, offsets, slot and token from ids. tile_counts [tiles, E]: choices of each expert in
// each run of tile_choices choices, at most kSortedChoices.
void sort_choices(Ctx& cx, const Routing& routing, const int32_t* tile_counts, int tile_choices);

}  // namespace nibble::ops::gpu
