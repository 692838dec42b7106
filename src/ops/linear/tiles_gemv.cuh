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

namespace nibble::ops::gpu {

// 16 warps and rings of three chunks: half an H200 SM, so that the next kernel's weights are on
// their way while this one works. sm_121 has 99 KB a block.
#if NIBBLE_CUDA_SM == 121
inline constexpr int kGemvWarps = 8, kGemvStages = 2;
inline constexpr int kFewTokens = 4;  // of a pass of gemv_few
#else
inline constexpr int kGemvWarps = 16, kGemvStages = 3;
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
inline constexpr int kMaxChoices = 8;             // of one token

// A warp's way through its chunks: chunk `chunk` of row tile `item`, every kGemvWarps-th.
struct ChunkWalk {
  int item, chunk;

  __device__ __forceinline__ ChunkWalk(int first_item, int chunks) {
    const int warp = threadIdx.x / 32;
    item = first_item + warp / chunks;
    chunk = warp % chunks;
  }
  __device__ __forceinline__ void next(int chunks) {
    chunk += kGemvWarps;
    while (chunk >= chunks) {
      chunk -= chunks;
      ++item;
    }
  }
};

// A warp's ring of chunks.
template <int kUnits>
class ChunkRing {
 public:
  static constexpr int kChunkBytes = kUnits * cuda::kUnitBytes;
  static constexpr int kBytes = kGemvWarps * kGemvStages * kChunkBytes;  // of all warps

  // `barriers`: kGemvStages 8-byte words of shared memory for each warp.
  __device__ __forceinline__ ChunkRing(uint32_t memory, uint32_t barriers) {
    const uint32_t warp = threadIdx.x / 32;
    data_ = memory + warp * kGemvStages * kChunkBytes;
    barrier_ = barriers + warp * kGemvStages * 8;
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int s = 0; s < kGemvStages; ++s) cuda::barrier_init(barrier_ + s * 8, 1);
      cuda::barrier_init_fence();
    }
    __syncwarp();
  }
  // By lane 0: starts the copy of a chunk into the slot that take() gives `ahead` calls from now.
  __device__ __forceinline__ void fetch(int ahead, const uint8_t* from) {
    int slot = slot_ + ahead;
    if (slot >= kGemvStages) slot -= kGemvStages;
    cuda::bulk_copy(data_ + slot * kChunkBytes, from, kChunkBytes, barrier_ + slot * 8);
  }
  // Waits for the next chunk; its shared address.
  __device__ __forceinline__ uint32_t take() {
    cuda::barrier_wait(barrier_ + slot_ * 8, phase_);
    return data_ + slot_ * kChunkBytes;
  }
  // The chunk of take() has been read by every lane (__syncwarp() lies between).
  __device__ __forceinline__ void advance() {
    if (++slot_ == kGemvStages) {
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
  int chunk_bytes;
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
  m.digits = padded(int64_t{kGemvWarps} * kGemvStages * n.chunk_bytes);
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

// Sum of row `row` of a row tile over its chunks, in order, from a round's partial sums. NaN where
// it is not finite: a scale of NaN counts as infinity in the products.
template <int kTokens>
__device__ __forceinline__ float row_sum(const float* parts, int item, int chunks, int row,
                                         int token) {
  float sum = 0;
  for (int c = 0; c < chunks; ++c) sum += parts[((item * chunks + c) * 16 + row) * kTokens + token];
  return fabsf(sum) <= 3.4028235e38f ? sum : __uint_as_float(0x7fc00000);
}

__device__ __forceinline__ float bias_of(const TileMatrix& m, int expert, int row) {
  return m.bias == nullptr
             ? 0.f
             : __uint_as_float(
                   static_cast<uint32_t>(m.bias[int64_t{expert} * m.row_tiles * 16 + row]) << 16);
}

// Rows of a round, in pairs (2r, 2r + 1) or, for kHeadHalves, (r, r + 32): calls
// store(token, row, first, second) with the finished sums. `experts_of(item)`: MoE.
template <Items kItems, int kTokens, typename Store>
__device__ __forceinline__ void finish_pairs(const TileMatrix& m, const float* parts, int begin,
                                             int items, int tokens, int expert, int first_tile,
                                             const Store& store) {
  constexpr bool kHalves = kItems == Items::kHeadHalves;
  const int pairs = kHalves ? items / 2 * 16 : items * 8;
  for (int i = threadIdx.x; i < pairs * tokens; i += kGemvThreads) {
    const int token = i / pairs, pair = i - token * pairs;
    const int item = kHalves ? pair / 16 * 2 : pair / 8, r = kHalves ? pair % 16 : pair % 8 * 2;
    const int tile = kHalves ? tile_of<kItems>(begin + item) : begin + item - first_tile;
    const int row = tile * 16 + r;
    const int other_item = kHalves ? item + 1 : item, other_r = kHalves ? r : r + 1;
    const float a = row_sum<kTokens>(parts, item, m.chunks, r, token);
    const float b = row_sum<kTokens>(parts, other_item, m.chunks, other_r, token);
    store(token, row, a + bias_of(m, expert, row),
          b + bias_of(m, expert, row + (kHalves ? 32 : 1)));
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
// first, second) as finish_pairs().
template <int kUnits, Items kItems, class Op>
__global__ void __launch_bounds__(kGemvThreads, 1)
    gemv_few(const __grid_constant__ TileMatrix m, const __grid_constant__ GemvMemory memory,
             const __grid_constant__ Op op) {
  constexpr int kChunkBytes = kUnits * cuda::kUnitBytes;
  constexpr bool kMoe = kItems == Items::kExperts;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[kGemvWarps * kGemvStages];
  __shared__ int first_group[kMoe ? kMaxExperts + 1 : 1], warp_sums[kGemvWarps];
  __shared__ uint32_t table_words[kGemvWarps];
  const uint32_t base = cuda::shared_address(shared);
  const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
  const uint32_t table = cuda::low_table(cuda::shared_address(&table_words[threadIdx.x / 32]));
  ChunkRing<kUnits> ring(base, cuda::shared_address(barriers));

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
  for (int s = 0; s < kGemvStages; ++s) fetch(s);
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
      finish_pairs<kItems, kFewTokens>(
          m, reinterpret_cast<const float*>(shared + parts), begin, end - begin, rows, expert,
          group * m.row_tiles,
          [&](int token, int row, float a, float b) { op.store(row0 + token, row, a, b); });
    }
    segment_begin = segment_last;
  }
}

// One token.
//
// Op: load(vector, k): 8 bf16 activations of vector 0, or of those of all choices (kAllExperts);
// store(row, weight row, first, second) as finish_pairs(), row: 0 or the segment (kExperts). MoE:
// top_k; place(experts), by one warp, puts the experts where their segments stand; weight(i): what
// kAllExperts multiplies choice i by.
template <int kUnits, Items kItems, class Op>
__global__ void __launch_bounds__(kGemvThreads, 2)
    gemv_one(const __grid_constant__ TileMatrix m, const __grid_constant__ GemvMemory memory,
             const __grid_constant__ Op op) {
  constexpr int kChunkBytes = kUnits * cuda::kUnitBytes;
  constexpr bool kMoe = kItems == Items::kExperts || kItems == Items::kAllExperts;
  // Whether the block knows its weights before griddep_wait(). A sum over experts multiplies what
  // moe_up wrote: they were chosen before that.
  constexpr bool kEarly = kItems != Items::kExperts;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[kGemvWarps * kGemvStages];
  __shared__ int experts[kMaxChoices];
  __shared__ uint32_t table_words[kGemvWarps];
  const uint32_t base = cuda::shared_address(shared);
  const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;

  int segments = 1;
  if constexpr (kMoe) segments = op.top_k;
  const int unit_items = kItems == Items::kHeadHalves ? 2 : 1;
  const int shared_out = kItems == Items::kExperts ? segments * m.row_tiles : m.row_tiles;
  const Share mine(shared_out / unit_items, blockIdx.x, gridDim.x);
  const int tiles = (mine.end - mine.begin) * unit_items;
  // Items of this block are numbered from `first` on; kAllExperts: expert by expert.
  const int first = kItems == Items::kAllExperts ? 0 : mine.begin * unit_items;
  const int last = first + tiles * (kItems == Items::kAllExperts ? segments : 1);

  ChunkRing<kUnits> ring(base, cuda::shared_address(barriers));
  ChunkWalk next_fetch(first, m.chunks);
  // Segment of next_fetch: its end, and where chunk 0 of item 0 would lie.
  int segment_end = kMoe ? first : last;
  const uint8_t* segment = m.bytes;
  const auto fetch = [&](int ahead) {
    if (next_fetch.item >= last) return;
    if (lane == 0) {
      if constexpr (kMoe)
        if (next_fetch.item >= segment_end) {
          const int per = kItems == Items::kExperts ? m.row_tiles : tiles;
          const int s = next_fetch.item / per;
          segment_end = (s + 1) * per;
          const int64_t tile0 = (kItems == Items::kExperts ? 0 : mine.begin) - int64_t{s} * per;
          segment = m.bytes + experts[s] * m.expert_bytes + tile0 * m.chunks * kChunkBytes;
        }
      const int64_t tile = tile_of<kItems>(next_fetch.item);
      ring.fetch(ahead, segment + (tile * m.chunks + next_fetch.chunk) * kChunkBytes);
    }
    next_fetch.next(m.chunks);
  };
  const auto fill_ring = [&] {
    if constexpr (kMoe) __syncthreads();  // experts[]
    for (int s = 0; s < kGemvStages; ++s) fetch(s);
  };

  // What does not depend on the kernel before.
  if constexpr (kItems == Items::kAllExperts) {
    if (threadIdx.x < 32) op.place(experts);
  }
  if constexpr (kEarly) fill_ring();
  const uint32_t zeros = base + memory.zeros, blocks = m.chunks * kUnits * 2;
  for (uint32_t i = threadIdx.x; i < blocks * cuda::kDigitBytes / 8; i += kGemvThreads)
    cuda::store_shared_8(zeros + i * 8, 0, 0);
  const uint32_t vectors = kItems == Items::kAllExperts ? segments : 1;
  if (threadIdx.x < 4)
    cuda::store_shared_float(base + memory.scales + (vectors * blocks + threadIdx.x) * 4, 0);
  const uint32_t table = cuda::low_table(cuda::shared_address(&table_words[threadIdx.x / 32]));

  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  // Activations first: behind the weights they would queue.
  uint4 x[kMaxLoads];
#pragma unroll
  for (int r = 0; r < kMaxLoads; ++r) {
    const uint32_t i = r * kGemvThreads + threadIdx.x;
    if (i < vectors * blocks * 4) x[r] = op.load(i / (blocks * 4), i % (blocks * 4) * 8);
  }
  if constexpr (!kEarly) {
    if (threadIdx.x < 32) op.place(experts);
    fill_ring();
  }
#pragma unroll
  for (int r = 0; r < kMaxLoads; ++r) {
    const uint32_t i = r * kGemvThreads + threadIdx.x;
    if (i >= vectors * blocks * 4) continue;
    const float scale = cuda::store_digits(x[r], base + memory.digits + i / 4 * cuda::kDigitBytes);
    if (i % 4 == 0) cuda::store_shared_float(base + memory.scales + i, 0.5f * scale);
  }
  __syncthreads();

  uint32_t digits[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    digits[i] =
        g / 2 == i ? base + memory.digits + g % 2 * (cuda::kDigitBytes / 2) + p * 8 : zeros + p * 8;
  ChunkWalk at(first, m.chunks);
  int round = 0;
  for (int begin = first; begin < last; begin += m.round_tiles, ++round) {
    const int end = min(last, begin + m.round_tiles);
    const uint32_t parts = memory.parts + round % 2 * memory.part_bytes;
    for (; at.item < end; at.next(m.chunks)) {
      const uint32_t chunk = ring.take();
      const cuda::OneToken<kUnits> w(chunk);
      __syncwarp();
      fetch(0);
      ring.advance();
      const int vector = kItems == Items::kAllExperts ? at.item / tiles : 0;
      const uint32_t block = at.chunk * kUnits * 2;
      uint32_t d[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        d[i] = digits[i] + (g / 2 == i ? vector * blocks * cuda::kDigitBytes : 0);
      const float2 sums = w.product(table, d, block * cuda::kDigitBytes,
                                    base + memory.scales + (vector * blocks + block + p) * 4);
      const uint32_t to = base + parts + ((at.item - begin) * m.chunks + at.chunk) * 64 + g * 4;
      if (p == 0) {
        cuda::store_shared_float(to, sums.x);
        cuda::store_shared_float(to + 32, sums.y);
      }
    }
    __syncthreads();
    const auto* sums = reinterpret_cast<const float*>(shared + parts);
    const auto store = [&](int, int row, float a, float b) { op.store(0, row, a, b); };
    if constexpr (kItems == Items::kAllExperts) {
      for (int i = threadIdx.x; i < tiles * 8; i += kGemvThreads) {
        const int r = i % 8 * 2, row = (mine.begin + i / 8) * 16 + r;
        float a = 0, b = 0;
        for (int s = 0; s < segments; ++s) {
          const int item = s * tiles + i / 8;
          const float weight = op.weight(s);
          a += weight * (row_sum<1>(sums, item, m.chunks, r, 0) + bias_of(m, experts[s], row));
          b += weight *
               (row_sum<1>(sums, item, m.chunks, r + 1, 0) + bias_of(m, experts[s], row + 1));
        }
        op.store(0, row, a, b);
      }
    } else if constexpr (kItems == Items::kExperts) {
      for (int part = begin; part < end;) {  // a round may cross from one expert to the next
        const int s = part / m.row_tiles, part_end = min(end, (s + 1) * m.row_tiles);
        finish_pairs<kItems, 1>(m, sums + (part - begin) * m.chunks * 16, part, part_end - part, 1,
                                experts[s], s * m.row_tiles,
                                [&](int, int row, float a, float b) { op.store(s, row, a, b); });
        part = part_end;
      }
    } else {
      finish_pairs<kItems, 1>(m, sums, begin, end - begin, 1, 0, 0, store);
    }
  }
}

}  // namespace nibble::ops::gpu
