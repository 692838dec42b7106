// One token: the chunks of a block's row tiles, in their order, go to its warps in turn; a warp
// puts the 16 partial sums of a chunk into shared memory, and after a round of tiles the block adds
// each row's chunks in their order and calls the epilogue.
//
// Lost on an H200, gpt-oss-120b, 2026-11-21: two blocks of a cluster that share their row tiles
// through distributed shared memory (572 tokens/s for 589: more even, but its barrier and remote
// stores cost 1 us a kernel); a rehearsal of what follows the wait, for the caches (562 for 576,
// and 585 for 601: it takes the SM from the kernel before); a kernel whose warps keep the digits of
// their columns in registers (1,452 us a step for 1,448), with halves of row tiles so that no block
// has four where the mean is 2.4: the longest loop ended 1.9 us after the mean, yet nothing is
// gained; BF16 rows: what the slots do not hold brought into L2 before the wait (467 tokens/s for
// 481).
#pragma once

#include "ops/linear/tiles.cuh"
#include "ops/norm/add_norm.cuh"

namespace nibble::ops::gpu {

// What a norm in front of a product reads and leaves: y = x + d, h = norm(y), as add_norm().
struct NormInput {
  const float *x, *d;
  float* y;     // or none
  uint16_t* h;  // row 0
  const uint16_t* weight;
  float eps;
  int hidden;          // at most kNormColumns
  const int32_t* row;  // of x and d; none: 0
};
// add_norm's order of sums: 12 warps, each lane 8 neighbouring columns.
inline constexpr int kNormWarps = 12, kNormColumns = kNormWarps * 32 * 8;
inline constexpr int kNormLoads = (kNormColumns / 8 + kGemvThreads - 1) / kGemvThreads;

template <class Op>
concept HasNorm = requires(const Op& op) {
  op.norm;
};

// Of h, the 8 columns from 8 (r * kGemvThreads + thread) on; every block works it out, the first
// one stores it. One barrier. weight: of the same columns.
__device__ __forceinline__ void norm_token(uint4 (&h)[kNormLoads], const NormInput& n, int64_t from,
                                           const uint4 (&weight)[kNormLoads],
                                           float (&squares)[kNormLoads * kGemvWarps]) {
  float y[kNormLoads][8] = {};
#pragma unroll
  for (int r = 0; r < kNormLoads; ++r) {
    const int column = 8 * (r * kGemvThreads + threadIdx.x);
    if (column < n.hidden) {
      const auto* x = reinterpret_cast<const float4*>(n.x + from + column);
      const auto* d = reinterpret_cast<const float4*>(n.d + from + column);
      const float4 x0 = __ldcg(x), x1 = __ldcg(x + 1), d0 = __ldcg(d), d1 = __ldcg(d + 1);
      y[r][0] = x0.x + d0.x, y[r][1] = x0.y + d0.y, y[r][2] = x0.z + d0.z, y[r][3] = x0.w + d0.w;
      y[r][4] = x1.x + d1.x, y[r][5] = x1.y + d1.y, y[r][6] = x1.z + d1.z, y[r][7] = x1.w + d1.w;
    }
    const float sum = warp_sum(sum_of_squares(y[r], 0));
    if (threadIdx.x % 32 == 0) squares[r * kGemvWarps + threadIdx.x / 32] = sum;
  }
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kNormWarps; ++w) sum += squares[w];
  const float inv = rsqrtf(sum / static_cast<float>(n.hidden) + n.eps);
#pragma unroll
  for (int r = 0; r < kNormLoads; ++r) {
    const int column = 8 * (r * kGemvThreads + threadIdx.x);
    if (column >= n.hidden) continue;
    h[r] = norm_8(y[r], inv, weight[r]);
    if (blockIdx.x != 0) continue;
    if (n.y != nullptr) store_8(n.y, column, y[r]);
    *reinterpret_cast<uint4*>(n.h + column) = h[r];
  }
}
__device__ __forceinline__ void load_norm_weight(uint4 (&weight)[kNormLoads], const NormInput& n) {
#pragma unroll
  for (int r = 0; r < kNormLoads; ++r) {
    const int column = 8 * (r * kGemvThreads + threadIdx.x);
    if (column < n.hidden) weight[r] = *reinterpret_cast<const uint4*>(n.weight + column);
  }
}

// Op: norm, or load(0, k): 8 bf16 activations; store(0, weight row, first, second[, place]) as
// finish_pairs().
template <int kUnits, int kStages, Items kItems, class Op>
__global__ void __launch_bounds__(kGemvThreads, 2)
    gemv_one(const __grid_constant__ TileMatrix m, const __grid_constant__ GemvMemory memory,
             const __grid_constant__ Op op) {
  constexpr int kChunkBytes = kUnits * cuda::kUnitBytes;
  constexpr bool kHalves = kItems == Items::kHeadHalves;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[kGemvWarps * kStages], table_words[kGemvWarps];
  __shared__ int64_t place;
  const uint32_t base = cuda::shared_address(shared);
  const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;

  const Share mine(kHalves ? m.row_tiles / 2 : m.row_tiles, blockIdx.x, gridDim.x);
  const int first = mine.begin * (kHalves ? 2 : 1), last = mine.end * (kHalves ? 2 : 1);

  ChunkRing<kUnits, kStages> ring(base, cuda::shared_address(barriers));
  ChunkWalk next_fetch(first, m.chunks);
  const auto fetch = [&](int ahead) {
    if (lane == 0 && next_fetch.item < last) {
      const int64_t tile = tile_of<kItems>(next_fetch.item);
      ring.fetch(ahead, m.bytes + (tile * m.chunks + next_fetch.chunk) * kChunkBytes);
    }
    next_fetch.next(m.chunks);
  };

  cuda::griddep_launch_dependents();
  // What does not depend on the kernel before.
#pragma unroll
  for (int s = 0; s < kStages; ++s) fetch(s);
  if constexpr (HasPlaces<Op>) {
    if (threadIdx.x == 0) place = op.place_of(0);
  }
  [[maybe_unused]] uint4 norm_weight[kNormLoads];
  [[maybe_unused]] int64_t norm_from = 0;
  if constexpr (HasNorm<Op>) {
    load_norm_weight(norm_weight, op.norm);
    if (op.norm.row != nullptr) norm_from = int64_t{*op.norm.row} * op.norm.hidden;
  }
  if (m.bias != nullptr)
#pragma unroll 1
    for (int i = threadIdx.x; i < last - first; i += kGemvThreads)
      touch(bias_of(m, 0, 16 * tile_of<kItems>(first + i)));
  clear_zeros(base + memory.zeros);
  const uint32_t blocks = m.chunks * kUnits * 2;
  const cuda::CodeTables tables(cuda::shared_address(&table_words[threadIdx.x / 32]));

  cuda::griddep_wait();
  // Activations first: behind the weights they would queue.
  const auto store_digits = [&](const uint4& x, uint32_t i) {
    store_activations(x, i, base + memory.digits, base + memory.factors, 1);
  };
  if constexpr (HasNorm<Op>) {
    __shared__ float squares[kNormLoads * kGemvWarps];
    uint4 h[kNormLoads];
    norm_token(h, op.norm, norm_from, norm_weight, squares);
#pragma unroll
    for (int r = 0; r < kNormLoads; ++r) {
      const uint32_t i = r * kGemvThreads + threadIdx.x;
      if (i < blocks * 4) store_digits(h[r], i);
    }
  } else {
    constexpr int kLoads = (kMaxLoads + 2) / 3;  // 4,608 columns and more
    uint4 x[kLoads];
#pragma unroll
    for (int r = 0; r < kLoads; ++r) {
      const uint32_t i = r * kGemvThreads + threadIdx.x;
      if (i < blocks * 4) x[r] = op.load(0, i * 8);
    }
#pragma unroll
    for (int r = 0; r < kLoads; ++r) {
      const uint32_t i = r * kGemvThreads + threadIdx.x;
      if (i < blocks * 4) store_digits(x[r], i);
    }
  }
  if constexpr (HasPlaces<Op>) op.touch(threadIdx.x);
  __syncthreads();

  using Product = cuda::TokensProduct<kUnits, 1>;
  const Product product(base + memory.digits, base + memory.factors, base + memory.zeros);
  ChunkWalk at(first, m.chunks);
  int round = 0;
  for (int begin = first; begin < last; begin += m.round_tiles, ++round) {
    const int end = min(last, begin + m.round_tiles);
    const uint32_t parts = memory.parts + round % 2 * memory.part_bytes;
    for (; at.item < end; at.next(m.chunks)) {
      const typename Product::Chunk chunk(ring.take());
      __syncwarp();
      fetch(0);
      ring.advance();
      float2 sums[1];
      product.run(sums, tables, chunk, at.chunk * kUnits * 2);
      const uint32_t to = base + parts + ((at.item - begin) * m.chunks + at.chunk) * 64 + g * 4;
      if (p == 0) {
        cuda::store_shared_float(to, sums[0].x);
        cuda::store_shared_float(to + 32, sums[0].y);
      }
    }
    __syncthreads();
    auto* sums = reinterpret_cast<float*>(shared + parts);
    finish_pairs<kItems, 1>(m, sums, begin, end - begin, 1, 0, 0,
                            [&](int, int row, float2 v) { store_pair_of(op, 0, row, v, place); });
  }
}

}  // namespace nibble::ops::gpu
