// Matrix-vector products for few tokens a weight: MXFP4 in kTiles16x64 times bf16 activations, by
// int8 digits (cuda/mma_digits.cuh). The kernels of norm_qkv, out_proj, moe_up, moe_down and
// norm_unembed are this loop with their own epilogues.
//
// A block takes a contiguous range of row tiles (16 rows). Their bytes are one stream of chunks
// (kUnits units of 544 bytes: 16 rows x 64 kUnits k); warp w takes chunks w, w + W, w + 2W ...
// through a ring of its own of bulk copies, and puts the 16 partial sums (a token) of a chunk into
// shared memory. After a round of tiles the block adds each row's chunks in their order and calls
// the epilogue. So the order of every sum is: inside a chunk as mma_digits says, chunks in
// sequence, bias: the same for one token and for many, alone and in a batch.
//
// Weights do not depend on the kernel before: the ring fills before griddep_wait() where the block
// knows which (dense layers, or experts that an earlier kernel chose).
#pragma once

#include <cstdint>

#include "cuda/bulk_copy.cuh"
#include "cuda/launch.cuh"
#include "cuda/mma_digits.cuh"
#include "ops/norm/add_norm.cuh"

namespace nibble::ops::gpu {

// 16 warps and rings of chunks: half an H200 SM, so that the next kernel's weights are on
// their way while this one works. sm_121 has 99 KB a block.
#if NIBBLE_CUDA_SM == 121
inline constexpr int kGemvWarps = 8, kFewStages = 2;
inline constexpr int kFewTokens = 4;  // of a pass of gemv_few
#else
inline constexpr int kGemvWarps = 16, kFewStages = 3;
inline constexpr int kFewTokens = 8;
#endif
inline constexpr int kGemvThreads = kGemvWarps * 32;
// 16-byte loads of activations that a thread of gemv_one holds: 16,384 values in all.
inline constexpr int kMaxLoads = 2048 / kGemvThreads;

// Where chunks lie and how they follow one another.
struct TileMatrix {
  const uint8_t* bytes = nullptr;  // [experts][row tiles][units][544]
  const uint16_t* bias = nullptr;  // [experts, 16 row tiles] or none
  int64_t expert_bytes = 0;
  int row_tiles = 0;
  int chunks = 0;       // of a row tile
  int round_tiles = 0;  // row tiles whose partial sums are kept at a time
};

inline constexpr int kMaxExperts = kGemvThreads;  // a thread counts for each
inline constexpr int kSumRows = 32;    // pairs of rows that sum_experts() takes at a time
inline constexpr int kMaxChoices = 8;  // of one token

// A warp's way through the chunks of a block: every kGemvWarps-th, from row tile `item` on.
struct ChunkWalk {
  int item, chunk;
  int items_a_step, chunks_a_step;

  __device__ __forceinline__ ChunkWalk(int first_item, int chunks) {
    const int warp = threadIdx.x / 32;
    item = first_item + warp / chunks;
    chunk = warp % chunks;
    items_a_step = kGemvWarps / chunks;
    chunks_a_step = kGemvWarps % chunks;
  }
  __device__ __forceinline__ void next(int chunks) {
    chunk += chunks_a_step;
    item += items_a_step;
    if (chunk >= chunks) {
      chunk -= chunks;
      ++item;
    }
  }
};

// A warp's ring of chunks.
template <int kUnits, int kStages>
class ChunkRing {
 public:
  static constexpr int kChunkBytes = kUnits * cuda::kUnitBytes;

  // `barriers`: kStages 8-byte words of shared memory for each warp.
  __device__ __forceinline__ ChunkRing(uint32_t memory, uint32_t barriers) {
    const uint32_t warp = threadIdx.x / 32;
    data_ = memory + warp * kStages * kChunkBytes;
    barrier_ = barriers + warp * kStages * 8;
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int s = 0; s < kStages; ++s) cuda::barrier_init(barrier_ + s * 8, 1);
      cuda::barrier_init_fence();
    }
    __syncwarp();
  }
  // By lane 0: starts the copy of a chunk into the slot that take() gives `ahead` calls from now.
  __device__ __forceinline__ void fetch(int ahead, const uint8_t* from) {
    int slot = slot_ + ahead;
    if (slot >= kStages) slot -= kStages;
    cuda::bulk_copy(data_ + slot * kChunkBytes, from, kChunkBytes, barrier_ + slot * 8);
  }
  // Waits for the next chunk; its shared address.
  __device__ __forceinline__ uint32_t take() {
    cuda::barrier_wait(barrier_ + slot_ * 8, phase_);
    return data_ + slot_ * kChunkBytes;
  }
  // The chunk of take() has been read by every lane (__syncwarp() lies between).
  __device__ __forceinline__ void advance() {
    if (++slot_ == kStages) {
      slot_ = 0;
      phase_ ^= 1;
    }
  }

 private:
  uint32_t data_, barrier_;
  int slot_ = 0;
  uint32_t phase_ = 0;
};

// Shared memory of a block: offsets, each a multiple of 128 (the zeros: 64 more, so that a warp's
// reads of digits and of zeros meet in no bank).
struct GemvMemory {
  uint32_t digits, zeros, scales, parts, part_bytes, end;
};
struct GemvNeeds {
  int stages, chunk_bytes;
  int blocks;         // of 32 k of an activation row
  int vectors;        // rows with digits at a time
  bool one_token;     // zeros for OneToken
  int part_tiles;     // row tiles of a round
  int part_tokens;    // partial sums of a row and chunk
  int chunks;         // of a row tile
  bool single_round;  // one buffer of partial sums instead of two
};
inline GemvMemory lay_out(const GemvNeeds& n) {
  const auto padded = [](int64_t bytes) {
    return static_cast<uint32_t>((bytes + 127) / 128 * 128);
  };
  GemvMemory m;
  m.digits = padded(int64_t{kGemvWarps} * n.stages * n.chunk_bytes);
  m.zeros = m.digits + padded(int64_t{n.vectors} * n.blocks * cuda::kDigitBytes) + 64;
  m.scales = m.zeros + 64 + padded(n.one_token ? n.blocks * cuda::kDigitBytes : 0);
  // Lanes of OneToken may read two scales past the last.
  m.parts = m.scales + padded((int64_t{n.vectors} * n.blocks + 4) * 4);
  m.part_bytes = padded(int64_t{n.part_tiles} * n.chunks * 16 * n.part_tokens * 4);
  m.end = m.parts + m.part_bytes * (n.single_round ? 1 : 2);
  return m;
}

// How the row tiles that blocks share out are numbered.
enum class Items {
  kTiles,       // tile after tile
  kHeadHalves,  // in each 64 rows tiles 0, 2, 1, 3: pairs of a rotary embedding lie side by side
  kExperts,     // the tiles of the first chosen expert, of the second ...
  kAllExperts   // tile t of all chosen experts, then tile t + 1: for sums over experts
};

// Row tile of an item of a dense matrix.
template <Items kItems>
__device__ __forceinline__ int tile_of(int item) {
  if constexpr (kItems != Items::kHeadHalves) return item;
  return (item & ~3) | (item & 1) << 1 | (item >> 1 & 1);
}

// A share of `count` things for block `block` of `blocks`: [begin, end).
struct Share {
  int begin, end;
  __device__ __forceinline__ Share(int count, int block, int blocks)
      : begin(static_cast<int>(int64_t{count} * block / blocks)),
        end(static_cast<int>(int64_t{count} * (block + 1) / blocks)) {}
};

// Sums of two rows (r, r + 1; of kHeadHalves: r of two items) over their chunks, in order, from a
// round's partial sums. NaN where one is not finite: a scale of NaN counts as infinity in the
// products.
template <int kTokens>
__device__ __forceinline__ float2 row_sums(const float* first, const float* second, int chunks) {
  float2 sum{0, 0};
#pragma unroll 5
  for (int c = 0; c < chunks; ++c) {
    sum.x += first[c * 16 * kTokens];
    sum.y += second[c * 16 * kTokens];
  }
  const auto finite = [](float v) {
    return fabsf(v) <= 3.4028235e38f ? v : __uint_as_float(0x7fc00000);
  };
  return {finite(sum.x), finite(sum.y)};
}

__device__ __forceinline__ const uint16_t* bias_of(const TileMatrix& m, int expert, int row) {
  return m.bias + int64_t{expert} * m.row_tiles * 16 + row;
}
__device__ __forceinline__ float bias_value(const TileMatrix& m, int expert, int row) {
  if (m.bias == nullptr) return 0;
  return __uint_as_float(static_cast<uint32_t>(*bias_of(m, expert, row)) << 16);
}
// Brings what the epilogue will read into L1: its latency would stand at the kernel's end.
__device__ __forceinline__ void touch(const void* p) {
  asm volatile("{\n.reg .u16 ignored;\nld.global.u16 ignored, [%0];\n}" ::"l"(p));
}

// Ops that store to an address that takes long to find: place_of(token), worked out beforehand.
template <class Op>
concept HasPlaces = requires(const Op& op) {
  op.place_of(0);
};

template <class Op>
__device__ __forceinline__ void store_pair_of(const Op& op, int row, int weight_row, float2 v,
                                              const int64_t& place) {
  if constexpr (HasPlaces<Op>)
    op.store(row, weight_row, v.x, v.y, place);
  else
    op.store(row, weight_row, v.x, v.y);
}

// Rows of a round, in pairs (2r, 2r + 1) or, for kHeadHalves, (r, r + 32): calls
// store(token, weight row, {first, second}) with the finished sums.
template <Items kItems, int kTokens, typename Store>
__device__ __forceinline__ void finish_pairs(const TileMatrix& m, const float* parts, int begin,
                                             int items, int tokens, int expert, int first_tile,
                                             const Store& store) {
  constexpr bool kHalves = kItems == Items::kHeadHalves;
  const int pairs = kHalves ? items / 2 * 16 : items * 8, tile_floats = m.chunks * 16 * kTokens;
  for (int i = threadIdx.x; i < pairs * tokens; i += kGemvThreads) {
    const int token = kTokens == 1 ? 0 : i / pairs, pair = i - token * pairs;
    const int item = kHalves ? pair / 16 * 2 : pair / 8, r = kHalves ? pair % 16 : pair % 8 * 2;
    const int tile = kHalves ? tile_of<kItems>(begin + item) : begin + item - first_tile;
    const int row = tile * 16 + r;
    const float* from = parts + item * tile_floats + r * kTokens + token;
    float2 v = row_sums<kTokens>(from, from + (kHalves ? tile_floats : kTokens), m.chunks);
    v.x += bias_value(m, expert, row);
    v.y += bias_value(m, expert, row + (kHalves ? 32 : 1));
    store(token, row, v);
  }
}

// First group of kFewTokens slots of each expert, and behind the last: group_of[e] .. [experts].
__device__ inline void count_groups(int* first_group, int* warp_sums, const int32_t* counts,
                                    int experts) {
  const int e = threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int mine = e < experts ? (__ldcg(counts + e) + kFewTokens - 1) / kFewTokens : 0;
  int sum = mine;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int before = __shfl_up_sync(0xffffffff, sum, step);
    if (lane >= step) sum += before;
  }
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; ++w) sum += warp_sums[w];
  if (e < experts) first_group[e + 1] = sum;
  if (e == 0) first_group[0] = 0;
  __syncthreads();
}

// The expert that owns group `group`.
__device__ inline int expert_of(const int* first_group, int experts, int group) {
  int low = 0, high = experts;  // first_group[low] <= group < first_group[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (first_group[middle] <= group ? low : high) = middle;
  }
  return low;
}

// Up to kFewTokens tokens a pass. Dense: blockIdx.y is the pass. Experts: the work is the row tiles
// of all groups of slots, in shares that each block works out from the counts on the device.
//
// Op: load(row, k): 8 bf16 activations of a row (dense: token; MoE: slot); store(row, weight row,
// first, second[, place]) as finish_pairs().
template <int kUnits, Items kItems, class Op>
__global__ void __launch_bounds__(kGemvThreads, 1)
    gemv_few(const __grid_constant__ TileMatrix m, const __grid_constant__ GemvMemory memory,
             const __grid_constant__ Op op) {
  constexpr int kChunkBytes = kUnits * cuda::kUnitBytes;
  constexpr bool kMoe = kItems == Items::kExperts;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[kGemvWarps * kFewStages];
  __shared__ int64_t places[kFewTokens];
  __shared__ int first_group[kMoe ? kMaxExperts + 1 : 1], warp_sums[kGemvWarps];
  __shared__ uint32_t table_words[kGemvWarps];
  const uint32_t base = cuda::shared_address(shared);
  const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
  const uint32_t table = cuda::low_table(cuda::shared_address(&table_words[threadIdx.x / 32]));
  ChunkRing<kUnits, kFewStages> ring(base, cuda::shared_address(barriers));

  if constexpr (kMoe) {
    cuda::griddep_wait();
    cuda::griddep_launch_dependents();
    count_groups(first_group, warp_sums, op.counts, op.experts);
  }
  constexpr int kTogether = kItems == Items::kHeadHalves ? 2 : 1;
  int groups = 1;
  if constexpr (kMoe) groups = first_group[op.experts];
  const Share mine(groups * m.row_tiles / kTogether, blockIdx.x, gridDim.x);
  const int first = mine.begin * kTogether, last = mine.end * kTogether;

  ChunkWalk next_fetch(first, m.chunks);
  int segment_end = first;  // of the items of one group
  const uint8_t* segment = m.bytes;
  const auto fetch = [&](int ahead) {
    if (next_fetch.item >= last) return;
    if (lane == 0) {
      if constexpr (kMoe)
        if (next_fetch.item >= segment_end) {
          const int group = next_fetch.item / m.row_tiles;
          segment_end = (group + 1) * m.row_tiles;
          segment = m.bytes + expert_of(first_group, op.experts, group) * m.expert_bytes -
                    int64_t{group} * m.row_tiles * m.chunks * kChunkBytes;
        }
      const int64_t tile = tile_of<kItems>(next_fetch.item);
      ring.fetch(ahead, segment + (tile * m.chunks + next_fetch.chunk) * kChunkBytes);
    }
    next_fetch.next(m.chunks);
  };
#pragma unroll
  for (int s = 0; s < kFewStages; ++s) fetch(s);
  if constexpr (!kMoe) {
    cuda::griddep_wait();
    cuda::griddep_launch_dependents();
  }

  ChunkWalk at(first, m.chunks);
  const int blocks = m.chunks * kUnits * 2;
  int round = 0;
  for (int segment_begin = first; segment_begin < last;) {
    // One group of rows: their digits, then their row tiles.
    int group = 0, expert = 0, segment_last = last;
    int row0 = blockIdx.y * kFewTokens, rows = min(kFewTokens, op.tokens - row0);
    if constexpr (kMoe) {
      group = segment_begin / m.row_tiles;
      expert = expert_of(first_group, op.experts, group);
      segment_last = min(last, (group + 1) * m.row_tiles);
      const int before = (group - first_group[expert]) * kFewTokens;
      row0 = __ldcg(op.offsets + expert) + before;
      rows = min(kFewTokens, __ldcg(op.counts + expert) - before);
    }
    __syncthreads();  // of the group before, everything has been read
    if constexpr (HasPlaces<Op>) {
      if (threadIdx.x < rows) places[threadIdx.x] = op.place_of(row0 + threadIdx.x);
    }
    for (int i = threadIdx.x; i < rows * blocks * 4; i += kGemvThreads) {
      const int row = i / (blocks * 4), k = (i - row * blocks * 4) * 8;
      const uint32_t place = k / 32 * kFewTokens + row;
      const float scale = cuda::store_digits(op.load(row0 + row, k),
                                             base + memory.digits + place * cuda::kDigitBytes);
      if (k % 32 == 0) cuda::store_shared_float(base + memory.scales + place * 4, 0.5f * scale);
    }
    __syncthreads();
    for (int begin = segment_begin; begin < segment_last; begin += m.round_tiles, ++round) {
      const int end = min(segment_last, begin + m.round_tiles);
      const uint32_t parts = memory.parts + round % 2 * memory.part_bytes;
      for (; at.item < end; at.next(m.chunks)) {
        const cuda::FewTokens<kUnits> w(ring.take());
        __syncwarp();
        fetch(0);
        ring.advance();
        const uint32_t block = at.chunk * kUnits * 2 * kFewTokens;
        const uint32_t digits = base + memory.digits + block * cuda::kDigitBytes;
        const uint32_t scales = base + memory.scales + block * 4;
        const uint32_t to = base + parts +
                            (((at.item - begin) * m.chunks + at.chunk) * 16 + g) * kFewTokens * 4 +
                            p * 4;
        const auto put = [&](int quad, float2 sums) {
          cuda::store_shared_float(to + quad * 16, sums.x);
          cuda::store_shared_float(to + quad * 16 + 8 * kFewTokens * 4, sums.y);
        };
        if (kFewTokens == 4 || rows <= 4) {
          float2 sums[1];
          w.template product<1, kFewTokens>(sums, table, digits, scales);
          put(0, sums[0]);
        } else if constexpr (kFewTokens == 8) {
          float2 sums[2];
          w.template product<2, kFewTokens>(sums, table, digits, scales);
          put(0, sums[0]);
          put(1, sums[1]);
        }
      }
      __syncthreads();
      finish_pairs<kItems, kFewTokens>(m, reinterpret_cast<const float*>(shared + parts), begin,
                                       end - begin, rows, expert, group * m.row_tiles,
                                       [&](int token, int row, float2 v) {
                                         store_pair_of(op, row0 + token, row, v, places[token]);
                                       });
    }
    segment_begin = segment_last;
  }
}

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
  __shared__ __align__(8) uint64_t barriers[kGemvWarps * kStages];
  __shared__ Choices choices;  // by segment
  __shared__ int64_t place;
  __shared__ uint32_t table_words[kGemvWarps];
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
    for (int i = threadIdx.x; i < last - first; i += kGemvThreads)
      touch(bias_of(m, kAll ? choices.expert[i / tiles] : 0,
                    16 * (kAll ? mine.begin + i % tiles : tile_of<kItems>(first + i))));
  const uint32_t zeros = base + memory.zeros, blocks = m.chunks * kUnits * 2;
  for (uint32_t i = threadIdx.x; i < blocks * cuda::kDigitBytes / 8; i += kGemvThreads)
    cuda::store_shared_8(zeros + i * 8, 0, 0);
  const uint32_t vectors = kAll ? segments : 1;
  if (threadIdx.x < 4)
    cuda::store_shared_float(base + memory.scales + (vectors * blocks + threadIdx.x) * 4, 0);
  const uint32_t table = cuda::low_table(cuda::shared_address(&table_words[threadIdx.x / 32]));

  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  // Activations first: behind the weights they would queue.
  const auto store_digits = [&](const uint4& x, uint32_t i) {
    const float scale = cuda::store_digits(x, base + memory.digits + i / 4 * cuda::kDigitBytes);
    if (i % 4 == 0) cuda::store_shared_float(base + memory.scales + i, 0.5f * scale);
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

  uint32_t digits[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    digits[i] =
        g / 2 == i ? base + memory.digits + g % 2 * (cuda::kDigitBytes / 2) + p * 8 : zeros + p * 8;
  ChunkWalk at(first, m.chunks);
  int round = 0, vector = 0;
  for (int begin = first; begin < last; begin += m.round_tiles, ++round) {
    const int end = min(last, begin + m.round_tiles);
    const uint32_t parts = memory.parts + round % 2 * memory.part_bytes;
    for (; at.item < end; at.next(m.chunks)) {
      const cuda::OneToken<kUnits> w(ring.take());
      __syncwarp();
      fetch(0);
      ring.advance();
      uint32_t d[4];
      if constexpr (kAll)
        while (at.item >= (vector + 1) * tiles) ++vector;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        d[i] = digits[i] + (kAll && g / 2 == i ? vector * blocks * cuda::kDigitBytes : 0);
      const uint32_t block = at.chunk * kUnits * 2;
      const float2 sums = w.product(table, d, block * cuda::kDigitBytes,
                                    base + memory.scales + (vector * blocks + block + p) * 4);
      const uint32_t to = base + parts + ((at.item - begin) * m.chunks + at.chunk) * 64 + g * 4;
      if (p == 0) {
        cuda::store_shared_float(to, sums.x);
        cuda::store_shared_float(to + 32, sums.y);
      }
    }
    __syncthreads();
    auto* sums = reinterpret_cast<float*>(shared + parts);
    if constexpr (kAll) {
      sum_experts(m, op, choices, sums, mine.begin, tiles, segments);
    } else if constexpr (kItems == Items::kExperts) {
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
