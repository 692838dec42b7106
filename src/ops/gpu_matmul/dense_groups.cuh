// The row tiles of a dense layer as groups, as grouped_gemm.cuh has those of experts.
#pragma once

#include "ops/gpu_matmul/grouped_gemm.cuh"

namespace nibble::ops::gpu {

// The groups of a dense layer: what Groups are to experts. Where K is cut into slices each has the
// groups of all tokens, as an expert would, and its rows behind those of the slice before.
struct DenseGroups {
  int tokens = 0, slices = 1;

  __device__ __forceinline__ int of_slice(int group_rows) const {
    return (tokens + group_rows - 1) / group_rows;
  }
  __device__ __forceinline__ int share(int block, int blocks, int group_rows, int row_tiles) const {
    const uint32_t items = of_slice(group_rows) * slices * row_tiles;
    return static_cast<int>(items * uint64_t{static_cast<uint32_t>(block)} / blocks);
  }
  __device__ __forceinline__ Group at(int item, int end, int group_rows, int row_tiles) const {
    const int index = item / row_tiles, slice = index / of_slice(group_rows);
    const int row0 = (index - slice * of_slice(group_rows)) * group_rows;
    return {index * row_tiles, min(end, (index + 1) * row_tiles), slice, slice * tokens + row0,
            min(group_rows, tokens - row0)};
  }
};
template <class Op>
concept HasSlices = requires(const Op& op) {
  op.slices;
};
template <class Op>
__device__ __forceinline__ DenseGroups dense_groups(const Op& op) {
  if constexpr (HasSlices<Op>)
    return {op.tokens, op.slices};
  else
    return {op.tokens};
}

}  // namespace nibble::ops::gpu
