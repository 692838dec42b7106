// One token: the chunks of a block's row tiles, in their order, go to its warps in turn; a warp
// puts the 16 partial sums of a chunk into shared memory, and after a round of tiles the block adds
// each row's chunks in their order and calls the epilogue.
//
// moe_up and moe_down of gpt-oss-120b on an H200, 2026-11-21, in a graph of their own: 13.6
// and 11.8 us (2.6 and 1.5 TB/s); 157 of some 220 instructions a chunk of 3 units are the
// product's. Lost: bringing the rest of moe_down's share into L2 while moe_up runs (+0.4 us), of
// moe_up's own share after the choice (+3 us).
// Lost on an H200, gpt-oss-120b, 2026-11-21: two blocks of a cluster that share their row tiles
// through distributed shared memory (572 tokens/s for 589: more even, but its barrier and remote
// stores cost 1 us a kernel); a rehearsal of what follows the wait, for the caches (562 for 576,
// and 585 for 601: it takes the SM from the kernel before); a kernel for dense matrices whose warps
// keep the digits of their columns in registers (603 for 606), whether a block has whole pairs of
// row tiles or halves of them, so that none has four where the mean is 2.4 (the longest loop
// ends 1.9 us after the mean, yet a step is no shorter); BF16 rows: what the slots do not hold
// brought into L2 before the wait (467 for 481).
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

// One token.
//
// Op: norm, or load(slot, k): 8 bf16 activations (slot: 0 but for kAllExperts); store(row, weight
// row, first, second[, place]) as finish_pairs(), row: 0 or the segment (kExperts). MoE: top_k, and
// fill(choices), by one warp: experts in the order of their segments, for kAllExperts all of it.
struct Choices {
  int expert[kMaxChoices], slot[kMaxChoices];
  float weight[kMaxChoices];
};

// The only round of kAllExperts: each row of each expert, then the rows weighed in order of choice.
template <class Op>
__device__ __forceinline__ void sum_experts(const TileMatrix& m, const Op& op,
                                            const Choices& choices, float* parts, int first_tile,
                                            int tiles, int segments) {
  __shared__ float2 rows[kMaxChoices][kSumRows];
  const int pairs = tiles * 8;
  for (int first = 0; first < pairs; first += kSumRows) {
    const int some = min(kSumRows, pairs - first);
#pragma unroll 1
    for (int i = threadIdx.x; i < some * segments; i += kGemvThreads) {
      const int s = i / some, pair = first + i - s * some, r = pair % 8 * 2;
      const int row = (first_tile + pair / 8) * 16 + r;
      const float* from = parts + (s * tiles + pair / 8) * m.chunks * 16 + r;
      float2 v = row_sums<1>(from, from + 1, m.chunks);
      v.x += bias_value(m, choices.expert[s], row);
      v.y += bias_value(m, choices.expert[s], row + 1);
      rows[s][pair - first] = v;
    }
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < some; i += kGemvThreads) {
      float2 sum{0, 0};
      for (int s = 0; s < segments; ++s) {
        sum.x = fmaf(choices.weight[s], rows[s][i].x, sum.x);
        sum.y = fmaf(choices.weight[s], rows[s][i].y, sum.y);
      }
      op.store(0, (first_tile + (first + i) / 8) * 16 + (first + i) % 8 * 2, sum.x, sum.y);
    }
    if (first + kSumRows < pairs) __syncthreads();
  }
}

template <int kUnits, int kStages, Items kItems, class Op>
__global__ void __launch_bounds__(kGemvThreads, 2)
    gemv_one(const __grid_constant__ TileMatrix m, const __grid_constant__ GemvMemory memory,
             const __grid_constant__ Op op) {
  constexpr int kChunkBytes = kUnits * cuda::kUnitBytes;
  constexpr bool kMoe = kItems == Items::kExperts || kItems == Items::kAllExperts;
  // A sum over experts multiplies what moe_up wrote: they were chosen before that one began.
  constexpr bool kAll = kItems == Items::kAllExperts;
  constexpr bool kHalves = kItems == Items::kHeadHalves;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[kGemvWarps * kStages], table_words[kGemvWarps];
  __shared__ Choices choices;  // by segment
  __shared__ int64_t place;
  const uint32_t base = cuda::shared_address(shared);
  const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;

  int segments = 1;
  if constexpr (kMoe) segments = op.top_k;
  const int row_tiles = kItems == Items::kExperts ? segments * m.row_tiles : m.row_tiles;
  const Share mine(kHalves ? row_tiles / 2 : row_tiles, blockIdx.x, gridDim.x);
  const int tiles = (mine.end - mine.begin) * (kHalves ? 2 : 1);
  // Items of this block are numbered from `first` on; kAllExperts: expert by expert.
  const int first = kAll ? 0 : mine.begin * (kHalves ? 2 : 1);
  const int last = first + tiles * (kAll ? segments : 1);

  ChunkRing<kUnits, kStages> ring(base, cuda::shared_address(barriers));
  ChunkWalk next_fetch(first, m.chunks);
  // Segment of next_fetch: its end, and where chunk 0 of item 0 would lie.
  int segment_end = kMoe ? first : last;
  const uint8_t* segment = m.bytes;
  const auto fetch = [&](int ahead) {
    if (lane == 0 && next_fetch.item < last) {
      if constexpr (kMoe)
        if (next_fetch.item >= segment_end) {
          const int per = kAll ? tiles : m.row_tiles;
          const int s = next_fetch.item / per;
          segment_end = (s + 1) * per;
          const int64_t tile0 = (kAll ? mine.begin : 0) - int64_t{s} * per;
          segment = m.bytes + choices.expert[s] * m.expert_bytes + tile0 * m.chunks * kChunkBytes;
        }
      const int64_t tile = tile_of<kItems>(next_fetch.item);
      ring.fetch(ahead, segment + (tile * m.chunks + next_fetch.chunk) * kChunkBytes);
    }
    next_fetch.next(m.chunks);
  };
  const auto fill_ring = [&] {
    if constexpr (kMoe) __syncthreads();  // choices
#pragma unroll
    for (int s = 0; s < kStages; ++s) fetch(s);
  };

  // The kernel behind moe_up reads what the one before it wrote.
  if constexpr (kItems != Items::kExperts) cuda::griddep_launch_dependents();
  // What does not depend on the kernel before.
  if constexpr (kAll) {
    if (threadIdx.x < 32) op.fill(choices);
  }
  if constexpr (kItems != Items::kExperts) fill_ring();
  if constexpr (HasPlaces<Op>) {
    if (threadIdx.x == 0) place = op.place_of(0);
  }
  [[maybe_unused]] uint4 norm_weight[kNormLoads];
  [[maybe_unused]] int64_t norm_from = 0;
  if constexpr (HasNorm<Op>) {
    load_norm_weight(norm_weight, op.norm);
    if (op.norm.row != nullptr) norm_from = int64_t{*op.norm.row} * op.norm.hidden;
  }
  if (m.bias != nullptr && kItems != Items::kExperts)
#pragma unroll 1
    for (int i = threadIdx.x; i < last - first; i += kGemvThreads)
      touch(bias_of(m, kAll ? choices.expert[i / tiles] : 0,
                    16 * (kAll ? mine.begin + i % tiles : tile_of<kItems>(first + i))));
  clear_zeros(base + memory.zeros);
  const uint32_t vectors = kAll ? segments : 1, blocks = m.chunks * kUnits * 2;
  const cuda::CodeTables tables(cuda::shared_address(&table_words[threadIdx.x / 32]));

  cuda::griddep_wait();
  if constexpr (kItems == Items::kExperts) cuda::griddep_launch_dependents();
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
    constexpr int kLoads = kAll ? kMaxLoads : (kMaxLoads + 2) / 3;  // 4,608 columns and more
    uint4 x[kLoads];
#pragma unroll
    for (int r = 0; r < kLoads; ++r) {
      const uint32_t i = r * kGemvThreads + threadIdx.x;
      if (i >= vectors * blocks * 4) continue;
      const uint32_t vector = kAll ? i / (blocks * 4) : 0;
      x[r] = op.load(kAll ? choices.slot[vector] : 0, (i - vector * blocks * 4) * 8);
    }
    if constexpr (kItems == Items::kExperts) {
      if (threadIdx.x < 32) op.fill(choices);
      fill_ring();
      if (m.bias != nullptr)
#pragma unroll 1
        for (int i = threadIdx.x; i < last - first; i += kGemvThreads) {
          const int s = (first + i) / m.row_tiles;
          touch(bias_of(m, choices.expert[s], 16 * (first + i - s * m.row_tiles)));
        }
    }
#pragma unroll
    for (int r = 0; r < kLoads; ++r) {
      const uint32_t i = r * kGemvThreads + threadIdx.x;
      if (i < vectors * blocks * 4) store_digits(x[r], i);
    }
  }
  if constexpr (HasPlaces<Op>) op.touch(threadIdx.x);
  __syncthreads();

  using Product = cuda::TokensProduct<kUnits, 1>;
  const Product product(base + memory.digits, base + memory.factors, base + memory.zeros);
  ChunkWalk at(first, m.chunks);
  int round = 0, vector = 0;
  for (int begin = first; begin < last; begin += m.round_tiles, ++round) {
    const int end = min(last, begin + m.round_tiles);
    const uint32_t parts = memory.parts + round % 2 * memory.part_bytes;
    for (; at.item < end; at.next(m.chunks)) {
      const typename Product::Chunk chunk(ring.take());
      __syncwarp();
      fetch(0);
      ring.advance();
      if constexpr (kAll)
        while (at.item >= (vector + 1) * tiles) ++vector;
      float2 sums[1];
      product.run(sums, tables, chunk, vector * blocks + at.chunk * kUnits * 2);
      const uint32_t to = base + parts + ((at.item - begin) * m.chunks + at.chunk) * 64 + g * 4;
      if (p == 0) {
        cuda::store_shared_float(to, sums[0].x);
        cuda::store_shared_float(to + 32, sums[0].y);
      }
    }
    __syncthreads();
    auto* sums = reinterpret_cast<float*>(shared + parts);
    if constexpr (kAll) {
      sum_experts(m, op, choices, sums, mine.begin, tiles, segments);
    } else if constexpr (kItems == Items::kExperts) {
#pragma unroll 1
      for (int part = begin; part < end;) {  // a round may cross from one expert to the next
        const int s = part / m.row_tiles, part_end = min(end, (s + 1) * m.row_tiles);
        finish_pairs<kItems, 1>(
            m, sums + (part - begin) * m.chunks * 16, part, part_end - part, 1, choices.expert[s],
            s * m.row_tiles, [&](int, int row, float2 v) { store_pair_of(op, s, row, v, place); });
        part = part_end;
      }
    } else {
      finish_pairs<kItems, 1>(m, sums, begin, end - begin, 1, 0, 0,
                              [&](int, int row, float2 v) { store_pair_of(op, 0, row, v, place); });
    }
  }
}

}  // namespace nibble::ops::gpu
