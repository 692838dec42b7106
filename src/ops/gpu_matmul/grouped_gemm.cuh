// Some tokens with many row tiles a block: the experts of a layer, the head. A warp takes whole row
// tiles and keeps their sums in registers, so that no warp waits for another while the weights of a
// block's groups stream.
//
// The work is the row tiles of all groups: a group is up to memory.group_rows tokens of an expert
// (or of all tokens of a dense matrix). Each block takes a contiguous share of them, which it works
// out from the offsets on the device: equal by what a tile costs with its group's tokens. The
// digits of as many groups as fit, two at least of gpt-oss's, stand in shared memory at a time. A
// ring holds spans of kSpan chunks.
//
// gpt-oss-120b's experts stream at 3.3 to 3.8 TB/s with 8 to 64 tokens (H200, 2026-11-21). Lost:
// all groups by f16: docs/lab/experts-of-a-batch.md.
#pragma once

#include "cuda/mma_halves.cuh"
#include "ops/gpu_matmul/tiles.cuh"

namespace nibble::ops::gpu {

inline constexpr int kExpertsStages = 2;
// Of a group. Groups of more than kDigitRows go by halves where sums may depend on the batch.
template <bool kExact>
inline constexpr int kMostRows = kExact ? 8 : 16;
inline constexpr int kDigitRows = 4;
template <int kUnits>
inline constexpr int kSpan = kUnits == 1 ? 4 : 2;

// Up to group_rows tokens of one expert.
struct Group {
  int first_item, end;  // row tiles; those of this block
  int expert, row0, rows;
  // Rows of activations in shared memory, as the products below want them.
  __device__ __forceinline__ int stride() const {
    return rows <= 2 ? rows : rows <= 4 ? 4 : rows <= 8 ? 8 : 16;
  }
};

// The products of a group's tokens with chunks. A lane's results, total[q]: rows g and g + 8 of a
// tile for token token(q).
template <int kUnits, int kTokens>
struct DigitProducts {
  using Product = cuda::TokensProduct<kUnits, kTokens>;
  static constexpr int kQuads = Product::kQuads;
  Product product;

  __device__ __forceinline__ DigitProducts(uint32_t x, uint32_t factors, uint32_t zeros)
      : product(x, factors, zeros) {}
  static __device__ __forceinline__ int token(int q) { return 4 * q + threadIdx.x % 4; }
  __device__ __forceinline__ void add(float2 (&total)[kQuads], const cuda::CodeTables& tables,
                                      uint32_t chunk, uint32_t block) const {
    const typename Product::Chunk codes(chunk);
    float2 sums[kQuads];
    product.run(sums, tables, codes, block);
#pragma unroll
    for (int q = 0; q < kQuads; ++q) total[q] = {total[q].x + sums[q].x, total[q].y + sums[q].y};
  }
  __device__ __forceinline__ float2 finish(float2 total, int) const { return total; }
};

template <int kUnits, int kTokens>
struct HalfProducts {
  static constexpr int kQuads = kTokens / 4;
  uint32_t x, factors;

  __device__ __forceinline__ HalfProducts(uint32_t x_at, uint32_t factors_at, uint32_t)
      : x(x_at + threadIdx.x % 32 * 16), factors(factors_at) {}
  static __device__ __forceinline__ int token(int q) {
    return q / 2 * 8 + threadIdx.x % 4 * 2 + q % 2;
  }
  __device__ __forceinline__ void add(float2 (&total)[kQuads], const cuda::CodeTables&,
                                      uint32_t chunk, uint32_t block) const {
#pragma unroll 1
    for (int u = 0; u < kUnits; ++u) {  // for want of registers
      const cuda::ChunkCodes<1, 1> codes(chunk + u * cuda::kUnitBytes);
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        const cuda::CodeHalves row_g(codes.row_g(b)), row_g8(codes.row_g8(b));
        const uint32_t pair = b == 0 ? codes.scales[0] & 0xffff : codes.scales[0] >> 16;
        const float scale_g = __uint_as_float((pair & 255) << 23);
        const float scale_g8 = __uint_as_float(pair >> 8 << 23);
        const uint32_t at = x + (block + 2 * u + b) * kTokens * cuda::kHalvesBytes;
#pragma unroll
        for (int q = 0; q < kQuads; q += 2) {
          float d[4];
          cuda::halves_product(d, row_g, row_g8,
                               cuda::load_shared_16(at + q * 4 * cuda::kHalvesBytes));
          total[q] = {fmaf(d[0], scale_g, total[q].x), fmaf(d[2], scale_g8, total[q].y)};
          total[q + 1] = {fmaf(d[1], scale_g, total[q + 1].x),
                          fmaf(d[3], scale_g8, total[q + 1].y)};
        }
      }
    }
  }
  __device__ __forceinline__ float2 finish(float2 total, int q) const {
    const float scale = __uint_as_float(cuda::load_shared_4(factors + token(q) * 4));
    return {total.x * scale, total.y * scale};
  }
};

// What a row tile costs with so many tokens: up to 4 its bytes count, then instructions.
template <bool kExact>
struct TileCost {
  static constexpr bool kPaired = false;
  static __device__ __forceinline__ int of(int rows) {
    return rows == 0 ? 0 : rows <= 2 ? 7 : rows <= 4 ? 8 : rows <= 8 ? (kExact ? 12 : 9) : 11;
  }
};

// The groups of all experts, in shared memory. Cost::of(rows): of a row tile. Cost::kPaired:
// experts of many rows and of few take turns, so that what neighbours have together differs little.
template <class Cost, int kExperts = kMaxCountedExperts>
struct Groups {
  static constexpr int kEach =
      (kExperts + kGemvThreads - 1) / kGemvThreads;  // that a thread counts
  int offset[kExperts + 1];  // first row of activations of each expert; behind the last: all
  // The experts, as they come; what follows is in that order.
  int order[Cost::kPaired ? kExperts : 1];
  int first[kExperts + 1];                     // first group
  alignas(16) int cost[kExperts / 4 * 4 + 4];  // of one row tile of every group before
  int2 warp_sums[kGemvWarps + 4];              // gemm_narrow has four warps more

  // By all threads, after a barrier behind the writes of `offset`; ends with one.
  __device__ __forceinline__ void count(int experts, int group_rows) {
    const int first_own = kEach * static_cast<int>(threadIdx.x);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if constexpr (Cost::kPaired) pair_up(experts);
    int2 own[kEach], sum{0, 0};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int e = first_own + i, rows = e < experts ? rows_of(order_of(e)) : 0;
      own[i] = {(rows + group_rows - 1) / group_rows,
                rows / group_rows * Cost::of(group_rows) + Cost::of(rows % group_rows)};
      sum = {sum.x + own[i].x, sum.y + own[i].y};
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int groups = __shfl_up_sync(0xffffffff, sum.x, step);
      const int costs = __shfl_up_sync(0xffffffff, sum.y, step);
      if (lane >= step) sum = {sum.x + groups, sum.y + costs};
    }
    if (lane == 31) warp_sums[warp] = sum;
    __syncthreads();
    if (first_own < experts)
      for (int w = 0; w < warp; ++w) sum = {sum.x + warp_sums[w].x, sum.y + warp_sums[w].y};
#pragma unroll
    for (int i = kEach - 1; i >= 0; --i) {
      const int e = first_own + i;
      if (e < experts) first[e + 1] = sum.x, cost[e + 1] = sum.y;
      sum = {sum.x - own[i].x, sum.y - own[i].y};
    }
    if (threadIdx.x == 0) first[0] = cost[0] = 0;
    __syncthreads();
  }
  __device__ __forceinline__ int rows_of(int e) const { return offset[e + 1] - offset[e]; }
  __device__ __forceinline__ int order_of(int i) const {
    if constexpr (Cost::kPaired) return order[i];
    return i;
  }
  // Most rows, fewest, second most, second fewest, ... By keys, in the place of `cost`, that order
  // by rows, then place.
  __device__ __forceinline__ void pair_up(int experts) {
    constexpr int kKeys = kExperts <= 512 ? 512 : 1024;
    static_assert(kExperts <= kKeys);
    const auto key_of = [&](int e) { return rows_of(e) * kKeys + kKeys - 1 - e; };
    for (int e = threadIdx.x; e < (experts + 3) / 4 * 4; e += blockDim.x)
      cost[e] = e < experts ? key_of(e) : -1;
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += blockDim.x) {
      const int mine = key_of(e);
      int rank = 0;
#pragma unroll 4
      for (int i = 0; i < experts; i += 4) {
        const int4 keys = *reinterpret_cast<const int4*>(cost + i);
        rank += (keys.x > mine) + (keys.y > mine) + (keys.z > mine) + (keys.w > mine);
      }
      order[rank < (experts + 1) / 2 ? 2 * rank : 2 * (experts - 1 - rank) + 1] = e;
    }
    __syncthreads();
  }
  // The place e with values[e] <= value < values[e + 1].
  static __device__ __forceinline__ int find(const int* values, int experts, int value) {
    int low = 0, high = experts;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (values[middle] <= value ? low : high) = middle;
    }
    return low;
  }
  // First item of a block's share.
  __device__ __forceinline__ int share(int block, int blocks, int experts, int group_rows,
                                       int row_tiles) const {
    if (block == blocks) return first[experts] * row_tiles;
    const int all = cost[experts] * row_tiles;  // in 32 bits: divisions by 64 take a microsecond
    const int work = all / blocks * block + all % blocks * block / blocks;
    const int e = find(cost, experts, work / row_tiles);
    const int groups = first[e + 1] - first[e], whole = Cost::of(group_rows);
    const int last = cost[e + 1] - cost[e] - (groups - 1) * whole;
    const int left = work - cost[e] * row_tiles;
    const int group = min(left / (whole * row_tiles), groups - 1);
    const int tile = (left - group * whole * row_tiles) / (group == groups - 1 ? last : whole);
    return (first[e] + group) * row_tiles + tile;
  }
  // The group of an item of a share that ends at `end`.
  __device__ __forceinline__ Group at(int item, int end, int experts, int group_rows,
                                      int row_tiles) const {
    const int index = item / row_tiles, place = find(first, experts, index);
    const int e = order_of(place), row0 = offset[e] + (index - first[place]) * group_rows;
    return {index * row_tiles, min(end, (index + 1) * row_tiles), e, row0,
            min(group_rows, offset[e + 1] - row0)};
  }
};

// kExact: a token's results are the same bits in any batch and as gemv_one's.
//
// Op: load(row, k): 8 bf16 activations of a row (dense: token; MoE: slot); store(row, weight row,
// first, second) with the finished sums of two neighbouring rows. Dense: tokens. MoE: offsets and
// experts; is_chosen_before: those are complete when the kernel starts.
template <int kUnits, Items kItems, bool kExact, class Op>
__global__ void __launch_bounds__(kGemvThreads, 1)
    grouped_gemm(const __grid_constant__ TileMatrix m, const __grid_constant__ GemvMemory memory,
                 const __grid_constant__ Op op) {
  constexpr int kChunkBytes = kUnits * cuda::kUnitBytes;
  constexpr bool kMoe = kItems == Items::kExperts;
  const bool waits_first = [&] {
    if constexpr (kMoe) return !op.is_chosen_before;
    return false;
  }();
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[kGemvWarps * kExpertsStages], table_words[kGemvWarps];
  __shared__ Groups<TileCost<kExact>> groups;
  const uint32_t base = cuda::shared_address(shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
  const cuda::CodeTables tables(cuda::shared_address(&table_words[warp]));
  ChunkRing<kUnits * kSpan<kUnits>, kExpertsStages> ring(base, cuda::shared_address(barriers));
  clear_zeros(base + memory.zeros);

  const auto wait = [] {
    cuda::griddep_wait();
    cuda::griddep_launch_dependents();
  };
  if (waits_first) wait();
  int experts = 1;
  if constexpr (kMoe) {
    experts = op.experts;
    for (int e = threadIdx.x; e <= experts; e += kGemvThreads)
      groups.offset[e] = __ldcg(op.offsets + e);
  } else {
    if (threadIdx.x == 0) groups.offset[0] = 0, groups.offset[1] = op.tokens;
  }
  __syncthreads();
  groups.count(experts, memory.group_rows);
  const auto share = [&](int block) {
    return groups.share(block, gridDim.x, experts, memory.group_rows, m.row_tiles);
  };
  const int first = share(blockIdx.x), last = share(blockIdx.x + 1);
  const auto group_at = [&](int item) {
    return groups.at(item, last, experts, memory.group_rows, m.row_tiles);
  };

  int next_item = first + warp, next_chunk = 0, next_end = 0;
  const uint8_t *next_span = nullptr, *group_bytes = nullptr;
  const auto fetch = [&](int ahead) {
    if (next_item >= last) return;
    if (next_chunk == 0) {
      if (next_item >= next_end) {
        const Group group = group_at(next_item);
        next_end = group.end;
        group_bytes = m.bytes + group.expert * m.expert_bytes -
                      int64_t{group.first_item} * m.chunks * kChunkBytes;
      }
      next_span = group_bytes + int64_t{next_item} * m.chunks * kChunkBytes;
    }
    const int bytes = min(kSpan<kUnits>, m.chunks - next_chunk) * kChunkBytes;
    if (lane == 0) ring.fetch(ahead, next_span, bytes);
    next_span += bytes;
    next_chunk += kSpan<kUnits>;
    if (next_chunk >= m.chunks) {
      next_chunk = 0;
      next_item += kGemvWarps;
    }
  };
#pragma unroll
  for (int s = 0; s < kExpertsStages; ++s) fetch(s);
  if (!waits_first) wait();

  int item = first + warp;
  const int blocks = m.chunks * kUnits * 2;
  // All row tiles of a group that are this warp's, with activations from row `held` of shared
  // memory.
  const auto run = [&]<class Products>(const Group& group, int held) {
    const Products products(base + memory.digits + held * blocks * cuda::kDigitBytes,
                            base + memory.factors + held * blocks * 8, base + memory.zeros);
    for (; item < group.end; item += kGemvWarps) {
      // After the exchange below this lane holds rows `row` and `row` + 1.
      const int row = (item - group.first_item) * 16 + (g % 2 == 0 ? g : g + 7);
      uint32_t bias = 0;
      if (m.bias != nullptr)
        bias = *reinterpret_cast<const uint32_t*>(bias_of(m, group.expert, row));
      float2 total[Products::kQuads] = {};
      for (int chunk = 0; chunk < m.chunks; chunk += kSpan<kUnits>) {
        const uint32_t span = ring.take();
        const int some = min(kSpan<kUnits>, m.chunks - chunk);
#pragma unroll 1
        for (int c = 0; c < some; ++c)
          products.add(total, tables, span + c * kChunkBytes, (chunk + c) * kUnits * 2);
        __syncwarp();
        fetch(0);
        ring.advance();
      }
#pragma unroll
      for (int q = 0; q < Products::kQuads; ++q) {
        const float2 sums = products.finish(total[q], q);
        const float2 v = {finite(sums.x), finite(sums.y)};
        const float other = __shfl_xor_sync(0xffffffff, g % 2 == 0 ? v.y : v.x, 4);
        const int token = Products::token(q);
        if (token < group.rows)
          op.store(group.row0 + token, row,
                   (g % 2 == 0 ? v.x : other) + __uint_as_float(bias << 16),
                   (g % 2 == 0 ? other : v.y) + __uint_as_float(bias & 0xffff0000));
      }
    }
  };
  const auto store_group = [&](const Group& group, int held) {
    const int stride = group.stride();
    const uint32_t x = base + memory.digits + held * blocks * cuda::kDigitBytes;
    const uint32_t factors = base + memory.factors + held * blocks * 8;
    if (!kExact && group.rows > kDigitRows) {
      for (int row = warp; row < group.rows; row += kGemvWarps) {
        const float scale =
            cuda::store_halves([&](int k) { return op.load(group.row0 + row, k); }, blocks,
                               x + row * cuda::kHalvesBytes, stride * cuda::kHalvesBytes);
        if (lane == 0) cuda::store_shared_float(factors + row * 4, scale);
      }
      return;
    }
    for (int i = threadIdx.x; i < group.rows * blocks * 4; i += kGemvThreads) {
      const int row = i / (blocks * 4), part = i - row * blocks * 4;
      store_activations(op.load(group.row0 + row, part * 8), part, x + row * cuda::kDigitBytes,
                        factors + row * 8, stride);
    }
  };
  for (int begin = first; begin < last;) {
    __syncthreads();  // of the groups before, everything has been read
    int end = begin;
    for (int held = 0; end < last;) {
      const Group group = group_at(end);
      if (held + group.stride() > memory.rows) break;
      store_group(group, held);
      held += group.stride();
      end = group.end;
    }
    __syncthreads();
    for (int held = 0; begin < end;) {
      const Group group = group_at(begin);
      if (group.rows == 1)
        run.template operator()<DigitProducts<kUnits, 1>>(group, held);
      else if (group.rows == 2)
        run.template operator()<DigitProducts<kUnits, 2>>(group, held);
      else if (group.rows <= kDigitRows)
        run.template operator()<DigitProducts<kUnits, kDigitRows>>(group, held);
      else if constexpr (kExact)
        run.template operator()<DigitProducts<kUnits, 8>>(group, held);
      else if (group.rows <= 8)
        run.template operator()<HalfProducts<kUnits, 8>>(group, held);
      else
        run.template operator()<HalfProducts<kUnits, 16>>(group, held);
      held += group.stride();
      begin = group.end;
    }
  }
}

}  // namespace nibble::ops::gpu
