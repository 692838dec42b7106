// Some tokens with many row tiles a block: the experts of a layer, the head. A warp takes whole row
// tiles and keeps their sums in registers, so that no warp waits for another while the weights of a
// block's groups stream.
//
// The work is the row tiles of all groups: a group is up to memory.group_rows tokens of an expert
// (or of all tokens of a dense matrix). Each block takes a contiguous share of them, which it works
// out from the offsets on the device: equal by what a tile costs with its group's tokens. The
// digits of as many groups as fit, two at least of gpt-oss's, stand in shared memory at a time. A
// ring holds spans of kSpan chunks.
#pragma once

#include <type_traits>

#include "ops/linear/tiles.cuh"

namespace nibble::ops::gpu {

inline constexpr int kExpertsStages = 2;
inline constexpr int kMostRows = NIBBLE_CUDA_SM == 121 ? 8 : 12;  // of a group
template <int kUnits>
inline constexpr int kSpan = kUnits == 1 ? 4 : 2;

// Up to group_rows tokens of one expert.
struct Group {
  int first_item, end;  // row tiles; those of this block
  int expert, row0, rows;
  // Rows of digits in shared memory, as TokensProduct wants them.
  __device__ __forceinline__ int stride() const { return rows <= 2 ? rows : (rows + 3) / 4 * 4; }
};

// The groups of all experts, in shared memory.
struct Groups {
  int offset[kMaxExperts + 1];  // first row of activations of each expert; behind the last: all
  int first[kMaxExperts + 1];   // first group
  int cost[kMaxExperts + 1];    // of one row tile of every group before
  int2 warp_sums[kGemvWarps];

  // What a row tile costs with so many tokens: up to 4 its bytes count, then instructions.
  static __device__ __forceinline__ int cost_of(int rows) {
    return rows == 0 ? 0 : rows <= 2 ? 7 : rows <= 4 ? 8 : rows <= 8 ? 12 : 16;
  }
  // By all threads, one an expert, after a barrier behind the writes of `offset`; ends with one.
  __device__ __forceinline__ void count(int experts, int group_rows) {
    const int e = threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int rows = e < experts ? offset[e + 1] - offset[e] : 0;
    int2 sum{(rows + group_rows - 1) / group_rows,
             rows / group_rows * cost_of(group_rows) + cost_of(rows % group_rows)};
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int groups = __shfl_up_sync(0xffffffff, sum.x, step);
      const int costs = __shfl_up_sync(0xffffffff, sum.y, step);
      if (lane >= step) sum = {sum.x + groups, sum.y + costs};
    }
    if (lane == 31) warp_sums[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; ++w) sum = {sum.x + warp_sums[w].x, sum.y + warp_sums[w].y};
    if (e < experts) first[e + 1] = sum.x, cost[e + 1] = sum.y;
    if (e == 0) first[0] = cost[0] = 0;
    __syncthreads();
  }
  // The expert e with values[e] <= value < values[e + 1].
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
    const int64_t work = int64_t{cost[experts]} * row_tiles * block / blocks;
    const int e = find(cost, experts, static_cast<int>(work / row_tiles));
    const int groups = first[e + 1] - first[e], whole = cost_of(group_rows);
    const int last = cost[e + 1] - cost[e] - (groups - 1) * whole;
    const int left = static_cast<int>(work - int64_t{cost[e]} * row_tiles);
    const int group = min(left / (whole * row_tiles), groups - 1);
    const int tile = (left - group * whole * row_tiles) / (group == groups - 1 ? last : whole);
    return (first[e] + group) * row_tiles + tile;
  }
  // The group of an item of a share that ends at `end`.
  __device__ __forceinline__ Group at(int item, int end, int experts, int group_rows,
                                      int row_tiles) const {
    const int index = item / row_tiles, e = find(first, experts, index);
    const int row0 = offset[e] + (index - first[e]) * group_rows;
    return {index * row_tiles, min(end, (index + 1) * row_tiles), e, row0,
            min(group_rows, offset[e + 1] - row0)};
  }
};

// Op: load(row, k): 8 bf16 activations of a row (dense: token; MoE: slot); store(row, weight row,
// first, second) with the finished sums of two neighbouring rows. Dense: tokens. MoE: offsets and
// experts; kChosenBefore: they are older than the kernel before.
template <int kUnits, Items kItems, class Op>
__global__ void __launch_bounds__(kGemvThreads, 1)
    gemv_experts(const __grid_constant__ TileMatrix m, const __grid_constant__ GemvMemory memory,
                 const __grid_constant__ Op op) {
  constexpr int kChunkBytes = kUnits * cuda::kUnitBytes;
  constexpr bool kMoe = kItems == Items::kExperts;
  constexpr bool kWaitFirst = [] {
    if constexpr (kMoe) return !Op::kChosenBefore;
    return false;
  }();
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[kGemvWarps * kExpertsStages], table_words[kGemvWarps];
  __shared__ Groups groups;
  const uint32_t base = cuda::shared_address(shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
  const cuda::CodeTables tables(cuda::shared_address(&table_words[warp]));
  ChunkRing<kUnits * kSpan<kUnits>, kExpertsStages> ring(base, cuda::shared_address(barriers));
  clear_zeros(base + memory.zeros);

  const auto wait = [] {
    cuda::griddep_wait();
    cuda::griddep_launch_dependents();
  };
  if constexpr (kWaitFirst) wait();
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
  if constexpr (!kWaitFirst) wait();

  int item = first + warp;
  // All row tiles of a group that are this warp's, with digits from row `held` of shared memory on.
  const auto run = [&]<int kTokens>(const Group& group, int held) {
    // More than 8 tokens are two products: the sums of all would not fit into registers.
    constexpr int kMore = kTokens > 8 ? kTokens - 8 : 0, kQuads = (kTokens + 3) / 4;
    using Product = cuda::TokensProduct<kUnits, kTokens - kMore, kTokens>;
    using More = cuda::TokensProduct < kUnits, kMore == 0 ? 4 : kMore, kTokens<4 ? 4 : kTokens>;
    const uint32_t blocks = m.chunks * kUnits * 2;
    const uint32_t digits = base + memory.digits + held * blocks * cuda::kDigitBytes;
    const uint32_t factors = base + memory.factors + held * blocks * 8;
    const Product product(digits, factors, base + memory.zeros);
    const More more(digits + 8 * cuda::kDigitBytes, factors + 8 * 8, base + memory.zeros);
    for (; item < group.end; item += kGemvWarps) {
      // After the exchange below this lane holds rows `row` and `row` + 1.
      const int row = (item - group.first_item) * 16 + (g % 2 == 0 ? g : g + 7);
      uint32_t bias = 0;
      if (m.bias != nullptr)
        bias = *reinterpret_cast<const uint32_t*>(bias_of(m, group.expert, row));
      float2 total[kQuads] = {};
      for (int chunk = 0; chunk < m.chunks; chunk += kSpan<kUnits>) {
        const uint32_t span = ring.take();
        const int some = min(kSpan<kUnits>, m.chunks - chunk);
        const auto add = [&](const auto& part, int quad) {
          using Part = std::remove_cvref_t<decltype(part)>;
#pragma unroll 1
          for (int c = 0; c < some; ++c) {
            const typename Part::Chunk weights(span + c * kChunkBytes);
            float2 sums[Part::kQuads];
            part.run(sums, tables, weights, (chunk + c) * kUnits * 2);
#pragma unroll
            for (int q = 0; q < Part::kQuads; ++q) {
              total[quad + q].x += sums[q].x;
              total[quad + q].y += sums[q].y;
            }
          }
        };
        add(product, 0);
        if constexpr (kMore != 0) add(more, 2);
        __syncwarp();
        fetch(0);
        ring.advance();
      }
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        const float2 v = {finite(total[q].x), finite(total[q].y)};
        const float other = __shfl_xor_sync(0xffffffff, g % 2 == 0 ? v.y : v.x, 4);
        if (q * 4 + p < group.rows)
          op.store(group.row0 + q * 4 + p, row,
                   (g % 2 == 0 ? v.x : other) + __uint_as_float(bias << 16),
                   (g % 2 == 0 ? other : v.y) + __uint_as_float(bias & 0xffff0000));
      }
    }
  };
  const auto store_group = [&](const Group& group, int held) {
    const int blocks = m.chunks * kUnits * 2, stride = group.stride();
    for (int i = threadIdx.x; i < group.rows * blocks * 4; i += kGemvThreads) {
      const int row = i / (blocks * 4), part = i - row * blocks * 4;
      store_activations(op.load(group.row0 + row, part * 8), part,
                        base + memory.digits + (held * blocks + row) * cuda::kDigitBytes,
                        base + memory.factors + (held * blocks + row) * 8, stride);
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
        run.template operator()<1>(group, held);
      else if (group.rows == 2)
        run.template operator()<2>(group, held);
      else if (group.rows <= 4)
        run.template operator()<4>(group, held);
      else if (group.rows <= 8)
        run.template operator()<8>(group, held);
      else if constexpr (kMostRows > 8)
        run.template operator()<kMostRows>(group, held);
      held += group.stride();
      begin = group.end;
    }
  }
}

}  // namespace nibble::ops::gpu
