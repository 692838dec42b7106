// One token and a dense matrix: warp w multiplies chunk w of every row tile of its block, so that
// the digits of its columns stay in registers, and puts the 16 partial sums into shared memory;
// after a round of tiles the block adds each row's chunks in their order and calls the epilogue.
// What is known beforehand, biases and parameters too, is there before the wait for the kernel in
// front: read behind it, each is a trip to L2 (0.3 to 0.8 us) on the way of one token.
//
// kHeld, matrices of attention: all chunks of a block are on their way at once, no slot is filled
// twice, and blocks have half of a row tile (of a pair) where whole ones would be less even:
// norm_qkv at most 3 tiles instead of 4, out_proj 1.5 instead of 2. By turns on an H200,
// 2026-11-22, tg 1 @512: 794 -> 804 tokens/s, 5 of them the halves; the residual read before the
// wait 788 -> 794. Behind its wait norm_qkv then takes 0.9 us to h, 0.3 to the digits, 0.64 a row
// tile, 0.7 in finish_one; attention's wait ends 0.7 us later. finish_one, gone through beforehand
// by norm_qkv's idle warp: 1,240 -> 1,234.5 us a step; its chunks unrolled whole: 1,232.7.
//
// Lost: clusters that share row tiles, rehearsals by all warps, polling instead of the wait:
// docs/lab/one-token.md.
#pragma once

#include "cuda/bf16.cuh"
#include "cuda/parameters.cuh"
#include "ops/gpu_matmul/tiles.cuh"
#include "ops/norm/add_norm.cuh"

namespace nibble::ops::gpu {

// What a norm in front of a product reads and leaves: y = x + d, h = norm(y), as add_norm().
struct NormInput {
  const float *x, *d;
  float* y;     // or none
  uint16_t* h;  // row 0
  const uint16_t* weight;
  float eps, offset;
  int hidden;          // at most kNormColumns
  const int32_t* row;  // of x and d; none: 0
  bool is_x_old;       // complete when the kernel starts

  // The same of a token of several.
  __device__ __forceinline__ NormInput of(int token) const {
    NormInput n = *this;
    const int64_t at = int64_t{token} * hidden;
    n.x += at, n.d += at, n.y += at, n.h += at;
    return n;
  }
};
// add_norm's order of sums: 12 warps, each lane 8 neighbouring columns.
inline constexpr int kNormWarps = 12, kNormColumns = kNormWarps * 32 * 8;
// 16-byte groups of columns that a thread of kThreads takes.
template <int kThreads>
inline constexpr int kNormLoads = (kNormColumns / 8 + kThreads - 1) / kThreads;

template <class Op>
concept HasNorm = requires(const Op& op) {
  op.norm;
};

// What a thread reads before the wait for the kernel in front, of the columns of norm_token().
template <int kThreads>
struct NormReady {
  static constexpr int kLoads = kNormLoads<kThreads>;
  uint4 weight[kLoads];
  float4 x[kLoads][2];
  int64_t from;  // where the row begins

  __device__ __forceinline__ void load(const NormInput& n) {
    from = n.row == nullptr ? 0 : int64_t{*n.row} * n.hidden;
#pragma unroll
    for (int r = 0; r < kLoads; ++r) {
      const int column = 8 * (r * kThreads + threadIdx.x);
      if (column < n.hidden) weight[r] = *reinterpret_cast<const uint4*>(n.weight + column);
    }
    if (n.is_x_old) load_x(n);
  }
  __device__ __forceinline__ void load_x(const NormInput& n) {
#pragma unroll
    for (int r = 0; r < kLoads; ++r) {
      const int column = 8 * (r * kThreads + threadIdx.x);
      const auto* at = reinterpret_cast<const float4*>(n.x + from + column);
      if (column < n.hidden) x[r][0] = __ldcg(at), x[r][1] = __ldcg(at + 1);
    }
  }
};

// Of h, the 8 columns from 8 (r * kThreads + thread) on; every block works it out, the last one
// stores it. One barrier.
template <int kThreads>
__device__ __forceinline__ void norm_token(uint4 (&h)[kNormLoads<kThreads>], const NormInput& n,
                                           NormReady<kThreads>& ready) {
  constexpr int kLoads = kNormLoads<kThreads>;
  __shared__ float squares[kLoads * kThreads / 32];
  float y[kLoads][8] = {};
  if (!n.is_x_old) ready.load_x(n);
#pragma unroll
  for (int r = 0; r < kLoads; ++r) {
    const int column = 8 * (r * kThreads + threadIdx.x);
    if (column < n.hidden) {
      const auto* d = reinterpret_cast<const float4*>(n.d + ready.from + column);
      const float4 x0 = ready.x[r][0], x1 = ready.x[r][1], d0 = __ldcg(d), d1 = __ldcg(d + 1);
      y[r][0] = x0.x + d0.x, y[r][1] = x0.y + d0.y, y[r][2] = x0.z + d0.z, y[r][3] = x0.w + d0.w;
      y[r][4] = x1.x + d1.x, y[r][5] = x1.y + d1.y, y[r][6] = x1.z + d1.z, y[r][7] = x1.w + d1.w;
    }
    const float sum = warp_sum(sum_of_squares(y[r], 0));
    if (threadIdx.x % 32 == 0) squares[(r * kThreads + threadIdx.x) / 32] = sum;
  }
  __syncthreads();
  const float inv = inverse_rms_of<kNormWarps>(squares, n.hidden, n.eps);
#pragma unroll
  for (int r = 0; r < kLoads; ++r) {
    const int column = 8 * (r * kThreads + threadIdx.x);
    if (column >= n.hidden) continue;
    h[r] = norm_8(y[r], inv, ready.weight[r], n.offset);
    if (blockIdx.x + 1 != gridDim.x) continue;
    if (n.y != nullptr) store_8(n.y, column, y[r]);
    *reinterpret_cast<uint4*>(n.h + column) = h[r];
  }
}
inline constexpr int kOneWarps = 16, kOneThreads = kOneWarps * 32;
// A thread has 8 activations of a row at most.
template <int kUnits>
inline constexpr int kOneColumns = kOneWarps* kUnits * 64;
static_assert(kOneColumns<4> <= kOneThreads * 8 && kNormLoads<kOneThreads> == 1);

// How many row tiles (pairs of them for kHeadHalves) the blocks have: `each`, the first `more` one
// more, or the first `halved` half of one more: its rows 0..7 or 8..15. Then offsets in dynamic
// shared memory; the rings lie at 0.
struct OneLayout {
  int each, more, halved;
  uint32_t digits, factors, biases, parts, part_bytes, end;
};

// The row tiles of a block: items first .. last and, kHeld, maybe half of those behind all others'.
template <Items kItems, bool kHeld>
struct OneShare {
  static constexpr int kTogether = kItems == Items::kHeadHalves ? 2 : 1;
  int first, last, behind;
  bool has_half;

  __device__ __forceinline__ explicit OneShare(const OneLayout& layout) {
    const int block = static_cast<int>(blockIdx.x);
    first = (block * layout.each + min(block, layout.more)) * kTogether;
    last = first + (layout.each + (block < layout.more)) * kTogether;
    has_half = kHeld && block < layout.halved;
    behind = (static_cast<int>(gridDim.x) * layout.each + block / 2) * kTogether;
  }
  __device__ __forceinline__ int half() const { return blockIdx.x % 2; }
  __device__ __forceinline__ int end() const { return last + (has_half ? kTogether : 0); }
  __device__ __forceinline__ int tile(int item) const {
    return tile_of<kItems>(!kHeld || item < last ? item : item - last + behind);
  }
  // Of sum i: 16 of each item, then 16 of the half.
  __device__ __forceinline__ int row(int i) const {
    const int item = first + i / 16, r = i % 16;
    if (!kHeld || item < last) return tile_of<kItems>(item) * 16 + r;
    return tile(last + r / 8 % kTogether) * 16 + half() * 8 + r % 8;
  }
};

// Adds up the chunks of a round's row tiles and stores pairs of rows, (2r, 2r + 1) or, for
// kHeadHalves, (r, r + 32): pair `thread` and every kOneThreads-th behind it.
template <Items kItems, bool kHeld, class Op>
__device__ __forceinline__ void finish_one(const TileMatrix& m, const float* parts,
                                           const uint16_t* biases,
                                           const OneShare<kItems, kHeld>& share, int begin, int end,
                                           const Op& op, const int64_t& place, int thread) {
  constexpr bool kHalves = kItems == Items::kHeadHalves;
  constexpr int kUnroll = kHalves ? kOneWarps : 4;
  const int tile_floats = m.chunks * 16, whole = (end - begin) * 8;
  const int pairs = whole + (share.has_half ? (kHalves ? 8 : 4) : 0);
#pragma unroll 1
  for (int i = thread; i < pairs; i += kOneThreads) {
    int first = 2 * i, step = 1;  // between the sums of a pair
    if constexpr (kHalves) {
      const bool is_whole = !kHeld || i < whole;
      first = is_whole ? i / 16 * 32 + i % 16 : whole + i;
      step = is_whole ? 16 : 8;
    }
    const float* from = parts + first / 16 * tile_floats + first % 16;
    const float* second = from + (step == 16 ? tile_floats : step);
    float2 v{0, 0};
#pragma unroll 1
    for (int c = 0; c < m.chunks; c += kUnroll) {
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        if (c + j >= m.chunks) continue;
        v.x += from[(c + j) * 16];
        v.y += second[(c + j) * 16];
      }
    }
    v = {finite(v.x), finite(v.y)};
    if (m.bias != nullptr) {
      v.x += cuda::bf16_value(biases[first]);
      v.y += cuda::bf16_value(biases[first + step]);
    }
    store_pair_of(op, 0, share.row((begin - share.first) * 16 + first), v, place);
  }
}

// A warp's chunks of all row tiles of its block, on their way at once.
template <int kUnits, int kStages>
class HeldChunks {
 public:
  static constexpr int kChunkBytes = kUnits * cuda::kUnitBytes;

  // `barriers`: a word for each warp. `count`: of chunks, at most kStages.
  __device__ __forceinline__ HeldChunks(uint32_t memory, uint32_t barriers, int count)
      : data_(memory + threadIdx.x / 32 * (kStages * kChunkBytes)),
        barrier_(barriers + threadIdx.x / 32 * 8) {
    if (threadIdx.x % 32 == 0) {
      cuda::barrier_init(barrier_, count);
      cuda::barrier_init_fence();
    }
    __syncwarp();
  }
  __device__ __forceinline__ void fetch(int slot, const uint8_t* from) const {
    cuda::bulk_copy(data_ + slot * kChunkBytes, from, kChunkBytes, barrier_, cuda::evict_first());
  }
  __device__ __forceinline__ void wait() const { cuda::barrier_wait(barrier_, 0); }
  __device__ __forceinline__ uint32_t address() const { return data_; }

 private:
  const uint32_t data_, barrier_;
};

// A warp's chunks of all row tiles of its block, which lie from `chunks` on; sums to `to`.
template <Items kItems, class Product>
__device__ __forceinline__ void multiply_held(const Product& product,
                                              const cuda::CodeTables& tables,
                                              const OneShare<kItems, true>& share, uint32_t chunks,
                                              uint32_t to, uint32_t tile_bytes) {
  constexpr uint32_t kChunkBytes = Product::kBlocks / 2 * cuda::kUnitBytes;
  using Codes = typename Product::Chunk;
  const bool stores = (threadIdx.x & 2) == 0;
#pragma unroll 1
  for (int item = share.first; item < share.last; ++item) {
    const float sum = product.run(tables, Codes(chunks));
    if (stores) cuda::store_shared_float(to, sum);
    chunks += kChunkBytes;
    to += tile_bytes;
  }
  if (!share.has_half) return;
  const uint32_t second = kItems == Items::kHeadHalves ? chunks + kChunkBytes : chunks;
  const float sum = product.run(tables, Codes(chunks, second, share.half()));
  if (stores) cuda::store_shared_float(to, sum);
}

// Op: norm, or load(0, k): 8 bf16 activations; store(0, weight row, first, second[, place]) as
// finish_one(). m.chunks <= kOneWarps. kHeld: all row tiles of a block fit into the slots of its
// warps and are one round.
template <int kUnits, int kStages, Items kItems, bool kHeld, class Op>
__global__ void __launch_bounds__(kOneThreads, 2)
    gemv_one(const __grid_constant__ TileMatrix m, const __grid_constant__ OneLayout layout,
             const __grid_constant__ Op op) {
  using Product = cuda::RangeProduct<kUnits>;
  constexpr int kChunkBytes = kUnits * cuda::kUnitBytes;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[kOneWarps * kStages], table_words[kOneWarps];
  __shared__ int64_t place;
  const uint32_t base = cuda::shared_address(shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  cuda::griddep_launch_dependents();

  // What does not depend on the kernel before.
  const OneShare<kItems, kHeld> share(layout);
  const int first = share.first, last = share.last;
  const bool is_worker = warp < m.chunks;
  auto chunks = [&] {
    const uint32_t words = cuda::shared_address(barriers);
    if constexpr (kHeld)
      return HeldChunks<kUnits, kStages>(base, words, share.end() - first);
    else
      return ChunkRing<kUnits, kStages>(base, words);
  }();
  const auto fetch = [&](int ahead, int item) {
    if (lane == 0 && is_worker && item < share.end())
      chunks.fetch(ahead, m.bytes + (int64_t{share.tile(item)} * m.chunks + warp) * kChunkBytes);
  };
#pragma unroll 1
  for (int s = 0; s < kStages; ++s) fetch(s, first + s);
  if constexpr (HasPlaces<Op>) {
    if (threadIdx.x == 0) place = op.place_of(0);
  }
  uint4 x[1] = {};
  [[maybe_unused]] NormReady<kOneThreads> ready;
  if constexpr (HasNorm<Op>) ready.load(op.norm);
  // Read where they are needed they would come from L2, at the kernel's end.
  auto* const biases = reinterpret_cast<uint16_t*>(shared + layout.biases);
  if (m.bias != nullptr)
#pragma unroll 1
    for (int i = threadIdx.x; i < (last - first + share.has_half) * 16; i += kOneThreads)
      biases[i] = *bias_of(m, 0, share.row(i));
  const cuda::CodeTables tables(cuda::shared_address(&table_words[warp]));
  const uint32_t digits = base + layout.digits, factors = base + layout.factors;
  const bool has_columns = threadIdx.x < m.chunks * kUnits * 8;

  cuda::touch_parameters(m, layout, op);
  cuda::griddep_wait();
  if constexpr (HasNorm<Op>)
    norm_token<kOneThreads>(x, op.norm, ready);
  else if (has_columns)
    x[0] = op.load(0, threadIdx.x * 8);
  if (warp * 32 < m.chunks * kUnits * 8)
    store_activations(x[0], threadIdx.x, digits, factors, 1, ~0u, has_columns);
  if constexpr (HasPlaces<Op>) op.touch(threadIdx.x);
  if constexpr (kHeld) {
    if (is_worker) chunks.wait();
  }
  __syncthreads();

  Product product;
  const uint32_t range = warp * kUnits * 2;  // past the end it is not used
  product.load(digits + range * cuda::kDigitBytes, factors + range * 8);
  const uint32_t lane_sums = warp * 64 + (lane & 1) * 32 + lane / 4 * 4;
  if constexpr (kHeld) {
    if (is_worker)
      multiply_held<kItems>(product, tables, share, chunks.address(),
                            base + layout.parts + lane_sums, m.chunks * 64);
    // norm_qkv's end is long, and in every layer its code comes from L2. A last warp without a
    // chunk goes through it once while the others multiply, with weights for sums; as it has the
    // same pairs again, the first ones, it then stores over what it left.
    constexpr bool kMayRehearse = kItems == Items::kHeadHalves;
    const int thread = kMayRehearse ? (threadIdx.x + 32) % kOneThreads : threadIdx.x;
    bool rehearses = kMayRehearse && warp == kOneWarps - 1 && !is_worker;
#pragma unroll 1
    while (true) {
      if (!rehearses) __syncthreads();
      const uint32_t sums = rehearses ? 0 : layout.parts;
      finish_one(m, reinterpret_cast<const float*>(shared + sums), biases, share, first, last, op,
                 place, thread);
      if (!rehearses) return;
      rehearses = false;
    }
  } else {
    uint32_t parts = layout.parts;  // two buffers take turns
    for (int begin = first; begin < last; begin += m.round_tiles) {
      const int end = min(last, begin + m.round_tiles);
      uint32_t to = base + parts + lane_sums;
#pragma unroll 1
      for (int item = begin; is_worker && item < end; ++item) {
        const typename Product::Chunk codes(chunks.take());
        __syncwarp();
        fetch(0, item + kStages);
        chunks.advance();
        const float sum = product.run(tables, codes);
        if ((lane & 2) == 0) cuda::store_shared_float(to, sum);
        to += m.chunks * 64;
      }
      __syncthreads();
      finish_one(m, reinterpret_cast<const float*>(shared + parts), biases + (begin - first) * 16,
                 share, begin, end, op, place, threadIdx.x);
      parts = 2 * layout.parts + layout.part_bytes - parts;
    }
  }
}

}  // namespace nibble::ops::gpu
