// How weights come to a block of gemm_narrow_sm90.cuh: rings of chunks, and the way through them.
#pragma once

#include "cuda/bulk_copy.cuh"
#include "ops/gpu_matmul/grouped_gemm.cuh"

namespace nibble::ops::gpu::sm90 {

inline constexpr int kNarrowGroupsOfWarps = 4;
template <int kUnits>
inline constexpr int kNarrowStages = 10 / kUnits;  // at least

// A warpgroup's chunks on their way, of four row tiles each. Four lanes of the warp that fetches
// for it, one a row tile, fill slots; its warps empty them.
template <int kUnits_, int kUnitBytes>
class NarrowRing {
 public:
  static constexpr int kUnits = kUnits_;
  static constexpr int kTileBytes = kUnits * kUnitBytes, kStageBytes = 4 * kTileBytes;
  static constexpr int kMost = 16 / kUnits;    // stages
  static constexpr int kBarriers = 2 * kMost;  // a slot is filled, is empty

  __device__ __forceinline__ NarrowRing(uint32_t memory, uint32_t barriers, int warpgroup, int tile,
                                        int stages)
      : stages_(stages),
        chunk_(memory + warpgroup * stages * kStageBytes + tile * kTileBytes),
        barrier_(barriers + warpgroup * kBarriers * 8) {}
  // By one lane of a warpgroup's.
  __device__ __forceinline__ void init() const {
#pragma unroll
    for (int i = 0; i < kBarriers; ++i) barrier_init(barrier_ + i * 8, 4);
    cuda::barrier_init_fence();
  }
  __device__ __forceinline__ void fill(const uint8_t* from, int bytes) {
    barrier_wait(barrier_ + 8, phase_ ^ 1);
    cuda::bulk_copy(chunk_, from, bytes, barrier_, cuda::evict_first());
    advance();
  }
  // Waits for the next chunk; its shared address.
  __device__ __forceinline__ uint32_t take() const {
    barrier_wait(barrier_, phase_);
    return chunk_;
  }
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier_ + 8);
    advance();
  }

 private:
  __device__ __forceinline__ void advance() {
    chunk_ += 4 * kTileBytes;
    barrier_ += 16;
    if (++slot_ < stages_) return;
    slot_ = 0;
    phase_ ^= 1;
    chunk_ -= stages_ * kStageBytes;
    barrier_ -= stages_ * 16;
  }

  int stages_;
  uint32_t chunk_, barrier_, phase_ = 0;
  int slot_ = 0;
};

// One of the four row tiles of every tile of a warpgroup, one chunk of kTileBytes after the other.
// kHasRest: the last of a row tile may be shorter.
template <int kTileBytes, bool kHasRest, class GroupAt>
struct NarrowWalk {
  const TileMatrix& m;
  const GroupAt& group_at;
  int row_tile;
  int item, last;  // next tile of the block's share, and the share's end
  int rest;        // bytes of a row tile's last chunk
  int left = 0;    // chunks of it
  int group_end = 0;
  int64_t group_from = 0;
  const uint8_t* at = nullptr;

  // The next chunk, or none.
  __device__ __forceinline__ const uint8_t* next() {
    if (left == 0) {
      if (item >= last) return nullptr;
      const int64_t tile_bytes =
          int64_t{m.chunks} * kTileBytes - (kHasRest ? kTileBytes - rest : 0);
      if (item >= group_end) {
        const Group group = group_at(item);
        group_end = group.end;
        group_from = group.expert * m.expert_bytes + (row_tile - group.first_item * 4) * tile_bytes;
      }
      at = m.bytes + group_from + item * 4 * tile_bytes;
      left = m.chunks;
      item += kNarrowGroupsOfWarps;
    }
    --left;
    const uint8_t* const chunk = at;
    at += kTileBytes;
    return chunk;
  }
  // Of the chunk that was the next one.
  __device__ __forceinline__ int bytes() const { return kHasRest && left == 0 ? rest : kTileBytes; }
};

}  // namespace nibble::ops::gpu::sm90
