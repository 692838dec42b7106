// Work that is cut into tiles of unlike numbers: which thing the index-th tile is of.
#pragma once

#include <cstdint>

namespace nibble::cuda {

struct TilePlace {
  int32_t thing;  // -1: there are not so many tiles
  int32_t tile;   // of the thing
};

// The index-th tile, counted through `count` things of tiles_of(i) tiles each. By the whole block
// of kThreads, each of which gets it.
template <int kThreads, typename TilesOf>
__device__ __forceinline__ TilePlace find_tile(int index, int count, const TilesOf& tiles_of) {
  constexpr int kWarps = kThreads / 32;
  __shared__ int32_t sums[kWarps];
  __shared__ TilePlace found;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x == 0) found = {-1, 0};
  int before = 0;  // tiles of the things before this round's
  for (int first = 0; first < count && before <= index; first += kThreads) {
    const int thing = first + static_cast<int>(threadIdx.x);
    const int tiles = thing < count ? tiles_of(thing) : 0;
    int upto = tiles;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xffffffff, upto, step);
      if (lane >= step) upto += other;
    }
    if (lane == 31) sums[warp] = upto;
    __syncthreads();
    upto += before;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) upto += sums[w];
      before += sums[w];
    }
    if (index < upto && index >= upto - tiles) found = {thing, index - (upto - tiles)};
    __syncthreads();
  }
  return found;
}

}  // namespace nibble::cuda
