// One token and a dense matrix: warp w multiplies chunk w of every row tile of its block, so that
// the digits of its columns stay in registers, and puts the 16 partial sums into shared memory;
// after a round of tiles the block adds each row's chunks in their order and calls the epilogue.
// What is known beforehand, biases and parameters too, is there before the wait for the kernel in
// front: read behind it, each is a trip to L2 (0.3 to 0.8 us) on the way of one token.
//
// Lost on an H200, gpt-oss-120b, 2026-11-21 and 22: two blocks of a cluster that share their row
// tiles through distributed shared memory (572 tokens/s for 589: more even, but its barrier and
// remote stores cost 1 us a kernel); a rehearsal of what follows the wait, for the instruction
// cache, by all warps (585 for 601: it takes the SM from the kernel before) or by one (1,457 us a
// step for 1,450); 306 instead of 178 instructions a chunk, all warps going through all chunks
// (1,461 for 1,450); halves of row tiles so that no block has four where the mean is 2.4 (nothing;
// 740 for 748 tokens/s with codes in registers before the wait: qkv then ends 1.1 us sooner, by
// clocks of its blocks, and the kernels behind it take as much longer);
// 3, 6 and 7 stages for the head (nothing); the next kernel's start behind the wait (+5 us a step)
// or at the end (+60 to +75); digits picked by a select instead of a mask (+20: the loop, too,
// gets longer); BF16 rows: what the slots do not hold brought into L2 before the wait (467 tokens/s
// for 481); words that say themselves when they are written, polled instead of the wait, from
// attention to out_proj and norm_route (728 for 733) and from moe_down to norm_qkv and attention
// too (705: between two kernels lie only 0.4 to 0.5 us, and who polls takes as long); att as digits
// by attention (0). From shared memory a row tile of out_proj took 0.97 us, with code that is cold
// or warm: the pipe of bits and bytes binds. Shifts by dot products, in another pipe, won (748 ->
// 766 tokens/s); by IMAD.HI they lost (713 for 723), and signs flipped by IMAD as well gain
// nothing.
#pragma once

#include "cuda/bf16.cuh"
#include "cuda/parameters.cuh"
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
// 16-byte groups of columns that a thread of kThreads takes.
template <int kThreads>
inline constexpr int kNormLoads = (kNormColumns / 8 + kThreads - 1) / kThreads;

template <class Op>
concept HasNorm = requires(const Op& op) {
  op.norm;
};

// Of h, the 8 columns from 8 (r * kThreads + thread) on; every block works it out, the last one
// stores it. One barrier. weight: of the same columns.
template <int kThreads>
__device__ __forceinline__ void norm_token(uint4 (&h)[kNormLoads<kThreads>], const NormInput& n,
                                           int64_t from,
                                           const uint4 (&weight)[kNormLoads<kThreads>]) {
  constexpr int kLoads = kNormLoads<kThreads>;
  __shared__ float squares[kLoads * kThreads / 32];
  float y[kLoads][8] = {};
#pragma unroll
  for (int r = 0; r < kLoads; ++r) {
    const int column = 8 * (r * kThreads + threadIdx.x);
    if (column < n.hidden) {
      const auto* x = reinterpret_cast<const float4*>(n.x + from + column);
      const auto* d = reinterpret_cast<const float4*>(n.d + from + column);
      const float4 x0 = __ldcg(x), x1 = __ldcg(x + 1), d0 = __ldcg(d), d1 = __ldcg(d + 1);
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
    h[r] = norm_8(y[r], inv, weight[r]);
    if (blockIdx.x + 1 != gridDim.x) continue;
    if (n.y != nullptr) store_8(n.y, column, y[r]);
    *reinterpret_cast<uint4*>(n.h + column) = h[r];
  }
}
template <int kThreads>
__device__ __forceinline__ void load_norm_weight(uint4 (&weight)[kNormLoads<kThreads>],
                                                 const NormInput& n) {
#pragma unroll
  for (int r = 0; r < kNormLoads<kThreads>; ++r) {
    const int column = 8 * (r * kThreads + threadIdx.x);
    if (column < n.hidden) weight[r] = *reinterpret_cast<const uint4*>(n.weight + column);
  }
}

inline constexpr int kOneWarps = 16, kOneThreads = kOneWarps * 32;
// A thread has 8 activations of a row at most.
template <int kUnits>
inline constexpr int kOneColumns = kOneWarps* kUnits * 64;
static_assert(kOneColumns<4> <= kOneThreads * 8 && kNormLoads<kOneThreads> == 1);

// How many row tiles (pairs of them for kHeadHalves) the blocks have: `each`, the first `more` one
// more. Then offsets in dynamic shared memory; the rings lie at 0.
struct OneLayout {
  int each, more;
  uint32_t digits, factors, biases, parts, part_bytes, end;
};

// Adds up the chunks of a round's row tiles and stores pairs of rows, (2r, 2r + 1) or, for
// kHeadHalves, (r, r + 32).
template <Items kItems, class Op>
__device__ __forceinline__ void finish_one(const TileMatrix& m, const float* parts,
                                           const uint16_t* biases, int begin, int tiles,
                                           const Op& op, const int64_t& place) {
  constexpr bool kHalves = kItems == Items::kHeadHalves;
  const int tile_floats = m.chunks * 16;
#pragma unroll 1
  for (int i = threadIdx.x; i < tiles * 8; i += kOneThreads) {
    const int item = kHalves ? i / 16 * 2 : i / 8, r = kHalves ? i % 16 : i % 8 * 2;
    const int row = tile_of<kItems>(begin + item) * 16 + r;
    const float* from = parts + item * tile_floats + r;
    const float* second = from + (kHalves ? tile_floats : 1);
    float2 v{0, 0};
#pragma unroll 1
    for (int c = 0; c < m.chunks; c += 4) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (c + j >= m.chunks) continue;
        v.x += from[(c + j) * 16];
        v.y += second[(c + j) * 16];
      }
    }
    v = {finite(v.x), finite(v.y)};
    if (m.bias != nullptr) {
      v.x += cuda::bf16_value(biases[item * 16 + r]);
      v.y += cuda::bf16_value(biases[item * 16 + r + (kHalves ? 16 : 1)]);
    }
    store_pair_of(op, 0, row, v, place);
  }
}

// Op: norm, or load(0, k): 8 bf16 activations; store(0, weight row, first, second[, place]) as
// finish_one(). m.chunks <= kOneWarps.
template <int kUnits, int kStages, Items kItems, class Op>
__global__ void __launch_bounds__(kOneThreads, 2)
    gemv_one(const __grid_constant__ TileMatrix m, const __grid_constant__ OneLayout layout,
             const __grid_constant__ Op op) {
  using Product = cuda::RangeProduct<kUnits>;
  constexpr int kChunkBytes = kUnits * cuda::kUnitBytes;
  constexpr int kTogether = kItems == Items::kHeadHalves ? 2 : 1;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[kOneWarps * kStages], table_words[kOneWarps];
  __shared__ int64_t place;
  const uint32_t base = cuda::shared_address(shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  cuda::griddep_launch_dependents();

  // What does not depend on the kernel before.
  const int block = static_cast<int>(blockIdx.x);
  const int first = (block * layout.each + min(block, layout.more)) * kTogether;
  const int last = first + (layout.each + (block < layout.more)) * kTogether;
  const bool is_worker = warp < m.chunks;
  ChunkRing<kUnits, kStages> ring(base, cuda::shared_address(barriers));
  const auto fetch = [&](int ahead, int item) {
    if (lane == 0 && is_worker && item < last)
      ring.fetch(ahead, m.bytes + (int64_t{tile_of<kItems>(item)} * m.chunks + warp) * kChunkBytes);
  };
#pragma unroll 1
  for (int s = 0; s < kStages; ++s) fetch(s, first + s);
  if constexpr (HasPlaces<Op>) {
    if (threadIdx.x == 0) place = op.place_of(0);
  }
  uint4 x[1] = {};
  [[maybe_unused]] uint4 norm_weight[1];
  [[maybe_unused]] int64_t norm_from = 0;
  if constexpr (HasNorm<Op>) {
    load_norm_weight<kOneThreads>(norm_weight, op.norm);
    if (op.norm.row != nullptr) norm_from = int64_t{*op.norm.row} * op.norm.hidden;
  }
  // Read where they are needed they would come from L2, at the kernel's end.
  auto* const biases = reinterpret_cast<uint16_t*>(shared + layout.biases);
  if (m.bias != nullptr)
#pragma unroll 1
    for (int i = threadIdx.x; i < (last - first) * 16; i += kOneThreads)
      biases[i] = *bias_of(m, 0, 16 * tile_of<kItems>(first + i / 16) + i % 16);
  const cuda::CodeTables tables(cuda::shared_address(&table_words[warp]));
  const uint32_t digits = base + layout.digits, factors = base + layout.factors;
  const bool has_columns = threadIdx.x < m.chunks * kUnits * 8;

  cuda::touch_parameters(m, layout, op);
  cuda::griddep_wait();
  if constexpr (HasNorm<Op>)
    norm_token<kOneThreads>(x, op.norm, norm_from, norm_weight);
  else if (has_columns)
    x[0] = op.load(0, threadIdx.x * 8);
  if (warp * 32 < m.chunks * kUnits * 8)
    store_activations(x[0], threadIdx.x, digits, factors, 1, ~0u, has_columns);
  if constexpr (HasPlaces<Op>) op.touch(threadIdx.x);
  __syncthreads();

  Product product;
  const uint32_t range = warp * kUnits * 2;  // past the end it is not used
  product.load(digits + range * cuda::kDigitBytes, factors + range * 8);
  uint32_t parts = layout.parts;  // two buffers take turns
  for (int begin = first; begin < last; begin += m.round_tiles) {
    const int end = min(last, begin + m.round_tiles);
    uint32_t to = base + parts + warp * 64 + (lane & 1) * 32 + lane / 4 * 4;
#pragma unroll 1
    for (int item = begin; is_worker && item < end; ++item) {
      const typename Product::Chunk codes(ring.take());
      __syncwarp();
      fetch(0, item + kStages);
      ring.advance();
      const float sum = product.run(tables, codes);
      if ((lane & 2) == 0) cuda::store_shared_float(to, sum);
      to += m.chunks * 64;
    }
    __syncthreads();
    finish_one<kItems>(m, reinterpret_cast<const float*>(shared + parts),
                       biases + (begin - first) * 16, begin, end - begin, op, place);
    parts = 2 * layout.parts + layout.part_bytes - parts;
  }
}

}  // namespace nibble::ops::gpu
