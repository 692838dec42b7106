// What the matrix-vector products for few tokens share: MXFP4 weights in kTiles16x64 times bf16
// activations by int8 digits (cuda/mma_digits.cuh), or BF16 rows. The kernels of norm_qkv,
// out_proj, moe_up, moe_down and norm_unembed are four loops with their own epilogues:
//   gemv_one.cuh      one token: the chunks of a row tile go to different warps
//   gemv_chosen.cuh   each of few tokens, the experts chosen for it: a warp keeps to its columns
//   gemv_few.cuh      some tokens, few row tiles a block: likewise
//   grouped_gemm.cuh  some tokens, many row tiles a block, experts: a warp takes whole row tiles
// and rows_gemv.cuh for BF16.
//
// A row tile (16 rows) is a stream of chunks (kUnits units of 544 bytes: 16 rows x 64 kUnits k),
// that warps bring to shared memory through rings of bulk copies of their own. The order of every
// sum is: inside a chunk as mma_digits says, chunks in sequence, bias: the same in all four loops,
// for one token and for many, alone and in a batch.
//
// Weights do not depend on the kernel before: the ring fills before griddep_wait() where the block
// knows which (dense layers, or experts that an earlier kernel chose).
#pragma once

#include <cstdint>

#include "cuda/bulk_copy.cuh"
#include "cuda/launch.cuh"
#include "cuda/mma_digits.cuh"
#include "ops/gpu_matmul/expert_limits.h"

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

// Where chunks lie and how they follow one another.
struct TileMatrix {
  const uint8_t* bytes = nullptr;  // [experts][row tiles][units][544]
  const uint16_t* bias = nullptr;  // [experts, 16 row tiles] or none
  int64_t expert_bytes = 0;
  int row_tiles = 0;
  int chunks = 0;       // of a row tile
  int round_tiles = 0;  // row tiles whose partial sums are kept at a time
};

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

// A warp's ring of chunks. kOnce: a step reads the weights once.
template <int kUnits, int kStages, bool kOnce = true>
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
  __device__ __forceinline__ void fetch(int ahead, const uint8_t* from, int bytes = kChunkBytes) {
    int slot = slot_ + ahead;
    if (slot >= kStages) slot -= kStages;
    const uint32_t to = data_ + slot * kChunkBytes, barrier = barrier_ + slot * 8;
    if constexpr (kOnce)
      cuda::bulk_copy(to, from, bytes, barrier, cuda::evict_first());
    else
      cuda::bulk_copy(to, from, bytes, barrier);
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
  uint32_t digits, zeros, factors, parts, part_bytes, end;
  int rows;        // of activations, whose digits and factors it holds
  int group_rows;  // of grouped_gemm: most of a group
};
struct GemvNeeds {
  int stages, chunk_bytes;
  int blocks;         // of 32 k of an activation row
  int vectors;        // rows with digits at a time
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
  m.rows = n.vectors;
  m.digits = padded(int64_t{kGemvWarps} * n.stages * n.chunk_bytes);
  m.zeros = m.digits + padded(int64_t{n.vectors} * n.blocks * cuda::kDigitBytes) + 64;
  m.factors = m.zeros + 64 + cuda::kZeroBytes;
  m.parts = m.factors + padded(int64_t{n.vectors} * n.blocks * 8);
  m.part_bytes = padded(int64_t{n.part_tiles} * n.chunks * 16 * n.part_tokens * 4);
  m.end = m.parts + m.part_bytes * (n.single_round ? 1 : 2);
  return m;
}

// The zeros of a block's shared memory, by all threads; a barrier follows.
__device__ __forceinline__ void clear_zeros(uint32_t zeros) {
  for (uint32_t i = threadIdx.x; i < cuda::kZeroBytes / 8; i += kGemvThreads)
    cuda::store_shared_8(zeros + i * 8, 0, 0);
}

// The digits and factors of 8 values: `x` is quarter `i` % 4 of block `i` / 4 of a token, whose
// records stand `stride` blocks apart from `digits` and `factors` on. `lanes`, `stores`: see
// store_digits().
__device__ __forceinline__ void store_activations(const uint4& x, uint32_t i, uint32_t digits,
                                                  uint32_t factors, uint32_t stride,
                                                  uint32_t lanes = cuda::this_quad(),
                                                  bool stores = true) {
  const uint32_t block = i / 4 * stride;
  const float2 f = cuda::store_digits(x, digits + block * cuda::kDigitBytes, lanes, stores);
  if (i % 4 == 0 && stores)
    cuda::store_shared_8(factors + block * 8, __float_as_uint(f.x), __float_as_uint(f.y));
}

// How the row tiles that blocks share out are numbered.
enum class Items {
  kTiles,       // tile after tile
  kHeadHalves,  // in each 64 rows tiles 0, 2, 1, 3: pairs of a rotary embedding lie side by side
  kExperts      // the tiles of the first chosen expert, of the second ...
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
      : begin(part(count, block, blocks)), end(part(count, block + 1, blocks)) {}

 private:
  // In 32 bits, as divisions of 64 are a kilobyte of code each.
  static __device__ __forceinline__ int part(uint32_t count, uint32_t block, uint32_t blocks) {
    return static_cast<int>(count * block / blocks);
  }
};

// NaN where a sum is not finite: a scale of NaN counts as infinity in the products.
__device__ __forceinline__ float finite(float v) {
  return fabsf(v) <= 3.4028235e38f ? v : __uint_as_float(0x7fc00000);
}

// Sums of two rows (r, r + 1; of kHeadHalves: r of two items) over their chunks, in order, from a
// round's partial sums, kRows * kTokens of a chunk.
template <int kTokens, int kRows = 16>
__device__ __forceinline__ float2 row_sums(const float* first, const float* second, int chunks) {
  float2 sum{0, 0};
#pragma unroll 5
  for (int c = 0; c < chunks; ++c) {
    sum.x += first[c * kRows * kTokens];
    sum.y += second[c * kRows * kTokens];
  }
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
#pragma unroll 1
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

}  // namespace nibble::ops::gpu
