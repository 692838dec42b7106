// What the blocks that shared the keys of tiles of rows have left, put together.
// Bytes: 4 D + 8 a row and split, from L2. A warp a row; the parts of a batch of splits are on
// their way at a time.
#pragma once

#include "ops/attention/attention_tiles.cuh"

namespace nibble::ops::gpu::tiles {

// att from the parts, in their order. Grid (G, tiles of rows, pieces of a tile); a warp a row.
constexpr int kMergeWarps = 4, kMergePieces = 8;
template <int kDim>
__global__ void __launch_bounds__(kMergeWarps * 32)
    merge_parts(const __grid_constant__ TileParams a) {
  cuda::griddep_launch_dependents();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Rows rows = rows_of(a, find_span(a, blockIdx.y), blockIdx.y);
  cuda::griddep_wait();
  const int first = static_cast<int>(blockIdx.z) * kMergeWarps + warp;
  for (int row = first; row < rows.num_rows; row += kMergePieces * kMergeWarps) {
    const int64_t at = row_at(a, rows, row, blockIdx.x);
    const float2 none = {-FLT_MAX, 0};
    const float2 mine = lane < a.splits ? __ldcg(a.part_sums + at * a.splits + lane) : none;
    float top = mine.x;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) top = fmaxf(top, __shfl_xor_sync(kAll, top, step));
    const float weight = exp2_fast(mine.x - top);
    float sum = mine.y * weight;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(kAll, sum, step);
    float2 o[kDim / 64] = {};
    constexpr int kBatch = 1024 / kDim;  // parts on their way
    for (int first = 0; first < a.splits; first += kBatch) {
      float2 part[kBatch][kDim / 64];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int split = min(first + i, a.splits - 1);
        const auto* from =
            reinterpret_cast<const float2*>(a.parts + (at * a.splits + split) * kDim) + lane;
#pragma unroll
        for (int c = 0; c < kDim / 64; ++c) part[i][c] = __ldcg(from + 32 * c);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const float by = first + i < a.splits ? __shfl_sync(kAll, weight, first + i) : 0;
#pragma unroll
        for (int c = 0; c < kDim / 64; ++c)
          o[c].x += part[i][c].x * by, o[c].y += part[i][c].y * by;
      }
    }
    const float by = share_of(a, blockIdx.x, row, top, sum);
#pragma unroll
    for (int c = 0; c < kDim / 64; ++c)
      reinterpret_cast<uint32_t*>(a.att + at * kDim)[32 * c + lane] =
          cuda::pack_bf16(o[c].x * by, o[c].y * by);
  }
}

}  // namespace nibble::ops::gpu::tiles
