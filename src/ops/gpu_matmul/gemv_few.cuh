// Few tokens with one matrix of few row tiles a block (the layers of attention): up to kFewTokens
// of them a pass, blockIdx.y is the pass.
//
// A block takes a contiguous range of row tiles; warp w takes chunks w, w + W, w + 2W ... of them
// and puts the 16 partial sums (a token) of a chunk into shared memory. After a round of tiles the
// block adds each row's chunks in their order and calls the epilogue.
#pragma once

#include "ops/gpu_matmul/tiles.cuh"

namespace nibble::ops::gpu {

// Op: load(row, k): 8 bf16 activations of a token; store(row, weight row, first, second[, place])
// as finish_pairs().
template <int kUnits, Items kItems, class Op>
__global__ void __launch_bounds__(kGemvThreads, 1)
    gemv_few(const __grid_constant__ TileMatrix m, const __grid_constant__ GemvMemory memory,
             const __grid_constant__ Op op) {
  constexpr int kChunkBytes = kUnits * cuda::kUnitBytes;
  extern __shared__ __align__(128) uint8_t shared[];
  cuda::griddep_launch_dependents();
  __shared__ __align__(8) uint64_t barriers[kGemvWarps * kFewStages], table_words[kGemvWarps];
  __shared__ int64_t places[kFewTokens];
  const uint32_t base = cuda::shared_address(shared);
  const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
  const cuda::CodeTables tables(cuda::shared_address(&table_words[threadIdx.x / 32]));
  ChunkRing<kUnits, kFewStages, /*kOnce=*/false> ring(base, cuda::shared_address(barriers));

  constexpr int kTogether = kItems == Items::kHeadHalves ? 2 : 1;
  const Share mine(m.row_tiles / kTogether, blockIdx.x, gridDim.x);
  const int first = mine.begin * kTogether, last = mine.end * kTogether;
  ChunkWalk next_fetch(first, m.chunks);
  const auto fetch = [&](int ahead) {
    if (lane == 0 && next_fetch.item < last) {
      const int64_t tile = tile_of<kItems>(next_fetch.item);
      ring.fetch(ahead, m.bytes + (tile * m.chunks + next_fetch.chunk) * kChunkBytes);
    }
    next_fetch.next(m.chunks);
  };
#pragma unroll
  for (int s = 0; s < kFewStages; ++s) fetch(s);
  const int row0 = blockIdx.y * kFewTokens, rows = min(kFewTokens, op.tokens - row0);
  if constexpr (HasPlaces<Op>) {
    if (threadIdx.x < rows) places[threadIdx.x] = op.place_of(row0 + threadIdx.x);
  }
  cuda::griddep_wait();

  const int blocks = m.chunks * kUnits * 2;
  for (int i = threadIdx.x; i < rows * blocks * 4; i += kGemvThreads) {
    const int row = i / (blocks * 4), part = i - row * blocks * 4;
    store_activations(op.load(row0 + row, part * 8), part,
                      base + memory.digits + row * cuda::kDigitBytes,
                      base + memory.factors + row * 8, kFewTokens);
  }
  __syncthreads();
  using Four = cuda::TokensProduct<kUnits, 4, kFewTokens>;
  using All = cuda::TokensProduct<kUnits, kFewTokens>;
  const Four four(base + memory.digits, base + memory.factors, base + memory.zeros);
  const All all(base + memory.digits, base + memory.factors, base + memory.zeros);
  ChunkWalk at(first, m.chunks);
  int round = 0;
  for (int begin = first; begin < last; begin += m.round_tiles, ++round) {
    const int end = min(last, begin + m.round_tiles);
    const uint32_t parts = memory.parts + round % 2 * memory.part_bytes;
    for (; at.item < end; at.next(m.chunks)) {
      const typename All::Chunk chunk(ring.take());
      __syncwarp();
      fetch(0);
      ring.advance();
      const uint32_t to = base + parts +
                          (((at.item - begin) * m.chunks + at.chunk) * 16 + g) * kFewTokens * 4 +
                          p * 4;
      const auto put = [&](int quad, float2 sums) {
        cuda::store_shared_float(to + quad * 16, sums.x);
        cuda::store_shared_float(to + quad * 16 + 8 * kFewTokens * 4, sums.y);
      };
      if (rows <= 4) {
        float2 sums[1];
        four.run(sums, tables, chunk, at.chunk * kUnits * 2);
        put(0, sums[0]);
      } else {
        float2 sums[All::kQuads];
        all.run(sums, tables, chunk, at.chunk * kUnits * 2);
#pragma unroll
        for (int q = 0; q < All::kQuads; ++q) put(q, sums[q]);
      }
    }
    __syncthreads();
    finish_pairs<kItems, kFewTokens>(m, reinterpret_cast<const float*>(shared + parts), begin,
                                     end - begin, rows, 0, 0, [&](int token, int row, float2 v) {
                                       store_pair_of(op, row0 + token, row, v, places[token]);
                                     });
  }
}

}  // namespace nibble::ops::gpu
