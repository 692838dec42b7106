// Dense products of up to 256 tokens by wgmma, for matrices of so few rows that blocks of rows
// alone would leave SMs idle: y[t] = x[t] W^T + b, K shared out to the blocks of a cluster.
//
//   weights  in   MXFP4, NVFP4 or FP8 in kTiles16x64, [N / 16][K / 64] units, dequantized to bf16
//                 (unit.cuh), and of NVFP4 and FP8 in rows [N] f32
//   x        in   [T, K] bf16
//   Op       out  store(): the sums of two rows, or of two pairs 32 rows apart, bias included
//
// A block takes 192 rows, up to 128 tokens and a share of K. All its weights are on their way
// before griddep_wait(); x comes in stages of 64 k through a ring that holds all of them where they
// fit. The copy engine takes sums from block to block: each of the cluster adds up those of some
// tokens, in the order of K, and stores them.
//
// Sums: one chain over K for each share, then shares in sequence: the same for every token of a
// step, whatever the others hold.
//
// Bytes: N K 17 / 32 + T (2 K + 4 N); gpt-oss-120b's qkv 7.8 MB, out 6.3 MB: 1.8 and 1.4 us at 4.4
// TB/s. Reached by `nibble bench ops` with 64 tokens: 12.3 and 9.2 us (H200, 2026-11-22). Lost:
// more rows or tokens a block, sums by loads from other blocks: docs/lab/dense-products.md.
#pragma once

#include <algorithm>
#include <array>
#include <limits>

#include "cuda/bulk_copy.cuh"
#include "cuda/cluster.cuh"
#include "ops/ctx.h"
#include "ops/gpu_matmul/gemm_sm90.cuh"
#include "ops/refuse.h"

namespace nibble::ops::gpu::sm90 {

inline constexpr int kMaxSplit = 8, kMaxSplitUnits = 80;

// Three warpgroups of 64 rows, by kN tokens; one of their threads fills: a warp more would leave
// each 128 registers.
template <int kN_, class Unit_>
struct SplitShape {
  using Unit = Unit_;
  static constexpr int kN = kN_, kRows = 192, kThreads = 2 * kRows, kReaders = kThreads / 32;
  static constexpr int kStageBytes = kN * 128;
  static constexpr int kPitch = kRows + 4;  // floats
  static constexpr int kSumBytes = kN * kPitch * 4;
  static constexpr int kWeightBytes = kRows / 16 * Unit::kBytes;  // of 64 k
};

// Shared memory of a block, less what it declares and aligning.
inline constexpr int kSplitBytes = 222 * 1024;
// Stages of x beside the weights of so many units: all, or what fits (1 would stand still); or 0.
template <class S>
int stages_of(int num_units) {
  const int most = (kSplitBytes - num_units * S::kWeightBytes) / S::kStageBytes;
  return most >= num_units ? num_units : most > 1 ? most : 0;
}

struct SplitArgs {
  const uint8_t* units;
  const float* row_scales;  // or none
  const uint16_t* bias;     // or none
  int rows, num_units, tokens;
  int token_tiles;  // of kN, each a cluster's
  int split;        // blocks of a cluster
  int stages;       // of x
};

// What a block has of K, and where it is.
struct SplitBlock {
  uint32_t smem, full, empty, weights_there, sums_there;
  int row0, token0, begin, num_units;
};

// What one thread does beside its products: all weights at once, x as the ring has room.
template <class S>
__device__ __forceinline__ void fetch_x(const SplitArgs& g, const CUtensorMap& x,
                                        const SplitBlock& b, int unit, int slot) {
  barrier_expect(b.full + slot * 8, S::kStageBytes);
  copy_box(b.smem + slot * S::kStageBytes, x, (b.begin + unit) * 64, b.token0, b.full + slot * 8);
}
template <class S>
__device__ __forceinline__ void fill_split(const SplitArgs& g, const CUtensorMap& x,
                                           const SplitBlock& b, int tiles) {
  const uint32_t w = b.smem + g.stages * S::kStageBytes, tile_bytes = b.num_units * S::Unit::kBytes;
  const uint8_t* from = g.units + (int64_t{b.row0 / 16} * g.num_units + b.begin) * S::Unit::kBytes;
  for (int i = 0; i < tiles; ++i)
    cuda::bulk_copy(w + i * tile_bytes, from + int64_t{i} * g.num_units * S::Unit::kBytes,
                    tile_bytes, b.weights_there, cuda::evict_first());
  cuda::griddep_wait();
  for (int u = 0; u < min(g.stages, b.num_units); ++u) fetch_x<S>(g, x, b, u, u);
}

// A warpgroup's 64 rows by kN tokens. Two groups of products are in flight at a time; while one
// runs, the A registers of the next are made.
template <class S>
__device__ __forceinline__ void multiply_split(const SplitArgs& g, const CUtensorMap& xs,
                                               const SplitBlock& b, const char* weights,
                                               float (&d)[S::kN / 2]) {
  constexpr int kN = S::kN;
  using U = typename S::Unit;
  const int lane = threadIdx.x % 32;
  const char* w = weights + threadIdx.x / 32 * b.num_units * U::kBytes;
  uint32_t a0[2][4], a1[2][4];
  int slot = 0, previous = 0, free = 0;  // `free`: of two units before
  uint32_t phase = 0, free_phase = 0;
  barrier_wait(b.weights_there, 0);
  for (int u = 0; u < b.num_units; ++u, w += U::kBytes) {
    if (threadIdx.x == 0 && u >= 2 && u - 2 + g.stages < b.num_units) {
      barrier_wait(b.empty + free * 8, free_phase);
      fetch_x<S>(g, xs, b, u - 2 + g.stages, free);
    }
    __syncwarp();
    if (u >= 2 && ++free == g.stages) free = 0, free_phase ^= 1;
    const auto q = codes_of<U>(w);
    const typename U::Scales s = scales_of<U>(w);
    const auto x = static_cast<uint32_t>(swizzled_128(b.smem + slot * S::kStageBytes));
    wgmma_wait<1>();
    decode_half<U, 0>(q, s, a0[0], a0[1]);
    barrier_wait(b.full + slot * 8, phase);
    wgmma_fence();
    wgmma_bf16<kN>(d, a0[0], x, u > 0);
    wgmma_bf16<kN>(d, a0[1], x + 2, 1);
    wgmma_commit();
    wgmma_wait<1>();
    if (u > 0 && lane == 0) barrier_arrive(b.empty + previous * 8);
    decode_half<U, 1>(q, s, a1[0], a1[1]);
    wgmma_fence();
    wgmma_bf16<kN>(d, a1[0], x + 4, 1);
    wgmma_bf16<kN>(d, a1[1], x + 6, 1);
    wgmma_commit();
    previous = slot;
    if (++slot == g.stages) slot = 0, phase ^= 1;
  }
  wgmma_wait<0>();
}

__device__ __forceinline__ float2 bf16_pair(const uint16_t* from) {
  const uint32_t pair = *reinterpret_cast<const uint32_t*>(from);
  return {cuda::bf16_lo(pair), cuda::bf16_hi(pair)};
}

// The tokens of a tile that a block of the cluster stores: `count` from `first` on.
struct SplitShare {
  int first, count;
  __device__ __forceinline__ SplitShare(int tokens, int rank, int split)
      : first(tokens * rank / split), count(tokens * (rank + 1) / split - first) {}
};

// The other blocks' sums of this one's tokens come behind its own; its sums of theirs go to them.
template <class S>
__device__ __forceinline__ void exchange_sums(const SplitArgs& g, const SplitBlock& b, int rank,
                                              int tokens) {
  const int c = threadIdx.x;
  if (c >= g.split) return;
  constexpr uint32_t kTokenBytes = S::kPitch * 4;
  const SplitShare share(tokens, c, g.split);
  const uint32_t bytes = share.count * kTokenBytes;
  if (c == rank) return barrier_expect(b.sums_there, (g.split - 1) * bytes);
  if (bytes == 0) return;
  const uint32_t to = b.smem + S::kSumBytes + (rank < c ? rank : rank - 1) * bytes;
  cuda::copy_to_remote(cuda::remote_address(to, c), b.smem + share.first * kTokenBytes, bytes,
                       cuda::remote_address(b.sums_there, c));
}

// Adds up and stores the tokens of this block. A thread has four rows of every so many: two pairs
// side by side, 32 rows apart in 64, as the pairs of a rotary embedding are in a head. What turns
// them is on its way for kAtOnce tokens at a time.
template <class S, class Op>
__device__ __forceinline__ void finish_split(const SplitArgs& g, const SplitBlock& b, int rank,
                                             const SplitShare& share, const int64_t* places,
                                             const Op& op) {
  constexpr int kQuads = S::kRows / 4, kFar = 32, kStep = S::kThreads / kQuads;
  constexpr int kAtOnce = S::kN >= 64 ? 4 : 2, kTokenBytes = S::kPitch * 4;
  static_assert(S::kThreads % kQuads == 0);
  const int quad = threadIdx.x % kQuads, r = quad / 16 * 64 + quad % 16 * 2, row = b.row0 + r;
  if (row >= g.rows) return;
  const bool has_far = row + kFar < g.rows;
  float2 near_bias{}, far_bias{};
  float2 near_back{kSumFactor, kSumFactor}, far_back = near_back;
  if constexpr (S::Unit::kHasRowScales) {
    const auto* back = reinterpret_cast<const float2*>(g.row_scales + row);
    near_back = {kSumFactor * back->x, kSumFactor * back->y};
    if (has_far) back += kFar / 2, far_back = {kSumFactor * back->x, kSumFactor * back->y};
  }
  if (g.bias != nullptr) {
    near_bias = bf16_pair(g.bias + row);
    if (has_far) far_bias = bf16_pair(g.bias + row + kFar);
  }
  const uint32_t received = b.smem + S::kSumBytes + r * 4;
  const uint32_t own = b.smem + share.first * kTokenBytes + r * 4;
  for (int t0 = threadIdx.x / kQuads; t0 < share.count; t0 += kAtOnce * kStep) {
    typename Op::Turn turn[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (t0 + i * kStep < share.count)
        turn[i] = op.turn(b.token0 + share.first + t0 + i * kStep, row);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int t = t0 + i * kStep;
      if (t >= share.count) break;
      float2 v{}, w{};
      for (int c = 0; c < g.split; ++c) {  // in the order of K
        const int other = c < rank ? c : c - 1;
        const uint32_t at =
            (c == rank ? own : received + other * share.count * kTokenBytes) + t * kTokenBytes;
        const float2 near = load_pair(at), far = load_pair(at + kFar * 4);
        v = {v.x + near.x, v.y + near.y}, w = {w.x + far.x, w.y + far.y};
      }
      v = {fmaf(v.x, near_back.x, near_bias.x), fmaf(v.y, near_back.y, near_bias.y)};
      w = {fmaf(w.x, far_back.x, far_bias.x), fmaf(w.y, far_back.y, far_bias.y)};
      const int token = share.first + t;
      if constexpr (Op::kHeadHalves) {
        op.store(b.token0 + token, row, v, w, turn[i], places[token]);
      } else {
        op.store(b.token0 + token, row, v);
        if (has_far) op.store(b.token0 + token, row + kFar, w);
      }
    }
  }
}

template <class S, class Op>
__global__ void __launch_bounds__(S::kThreads, 1)
    gemm_split_kernel(const __grid_constant__ SplitArgs g, const __grid_constant__ CUtensorMap x,
                      const __grid_constant__ Op op) {
  extern __shared__ char raw[];
  __shared__ __align__(8) uint64_t full[kMaxSplitUnits], empty[kMaxSplitUnits], weights_there,
      sums_there;
  __shared__ int64_t places[S::kN];
  cuda::griddep_launch_dependents();
  char* base = raw + (1024 - shared_address(raw) % 1024) % 1024;
  const int rank = static_cast<int>(blockIdx.x) % g.split;
  const int begin = g.num_units * rank / g.split;
  const int tile = static_cast<int>(blockIdx.x) / g.split;
  const int row0 = tile / g.token_tiles * S::kRows, token0 = tile % g.token_tiles * S::kN;
  const int tokens = min(S::kN, g.tokens - token0);
  const int tiles = min(S::kRows, g.rows - row0) / 16;
  const SplitBlock b{shared_address(base),
                     shared_address(full),
                     shared_address(empty),
                     shared_address(&weights_there),
                     shared_address(&sums_there),
                     row0,
                     token0,
                     begin,
                     g.num_units * (rank + 1) / g.split - begin};
  if (threadIdx.x == 0) {
    for (int s = 0; s < g.stages; ++s) {
      barrier_init(b.full + s * 8, 1);
      barrier_init(b.empty + s * 8, S::kReaders);
    }
    barrier_init(b.weights_there, tiles);
    barrier_init(b.sums_there, 1);
    barrier_init_fence();
  }
  if constexpr (Op::kHasPlaces) {
    if (threadIdx.x < tokens) places[threadIdx.x] = op.place_of(token0 + threadIdx.x);
  }
  __syncthreads();
  if (threadIdx.x == 0) fill_split<S>(g, x, b, tiles);
  __syncwarp();
  float d[S::kN / 2];
  multiply_split<S>(g, x, b, base + g.stages * S::kStageBytes, d);
  __syncthreads();  // everything has been read: the sums lie over it
  if (g.split > 1) cuda::cluster_arrive_relaxed();
  const int lane = threadIdx.x % 32;
  float* sums =
      reinterpret_cast<float*>(base) + lane % 4 * 2 * S::kPitch + threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (int j = 0; j < S::kN / 8; ++j, sums += 8 * S::kPitch) {
    sums[0] = d[4 * j];
    sums[S::kPitch] = d[4 * j + 1];
    sums[8] = d[4 * j + 2];
    sums[S::kPitch + 8] = d[4 * j + 3];
  }
  fence_async_proxy();
  __syncthreads();
  if (g.split > 1) {
    cuda::cluster_wait();  // the others have read everything, too
    exchange_sums<S>(g, b, rank, tokens);
    __syncwarp();
  }
  cuda::griddep_wait();  // of every thread that stores
  if (g.split > 1) {
    barrier_wait(b.sums_there, 0);
    __syncwarp();
    cuda::cluster_arrive_relaxed();  // nobody's shared memory goes while copies read it
  }
  finish_split<S>(g, b, rank, SplitShare(tokens, rank, g.split), places, op);
  if (g.split > 1) cuda::cluster_wait();
}

// Blocks of a cluster for the least time: a block takes as long as for 38 units, and its own; how
// many clusters run at once depends on where a GPU's SMs lie.
template <class S, class Op>
int split_of(int tiles, int num_units) {
  static const std::array<int, kMaxSplit + 1> at_once = [] {
    std::array<int, kMaxSplit + 1> counts{};
    for (unsigned split = 1; split <= kMaxSplit; ++split)
      counts[split] = cuda::clusters_at_once(gemm_split_kernel<S, Op>, {.grid = dim3(split),
                                                                        .block = dim3(S::kThreads),
                                                                        .smem_bytes = kSplitBytes,
                                                                        .cluster = split});
    return counts;
  }();
  int best = 1, least = std::numeric_limits<int>::max();
  for (int split = 1; split <= std::min(kMaxSplit, num_units); ++split) {
    const int units = (num_units + split - 1) / split, count = std::max(1, at_once[split]);
    const int cost = (tiles + count - 1) / count * (38 + units);
    if (units <= kMaxSplitUnits && stages_of<S>(units) > 0 && cost < least)
      best = split, least = cost;
  }
  CHECK(least < std::numeric_limits<int>::max());
  return best;
}

template <class S, class Op>
void launch_split_of(Ctx& cx, const Weight& w, const uint16_t* x, int tokens, const Op& op) {
  const int rows = static_cast<int>(w.rows), num_units = static_cast<int>(w.cols / 64);
  const int token_tiles = (tokens + S::kN - 1) / S::kN;
  const int tiles = (rows + S::kRows - 1) / S::kRows * token_tiles;
  const int split = split_of<S, Op>(tiles, num_units);
  const SplitArgs args{.units = w.codes,
                       .row_scales = w.row_scales,
                       .bias = w.bias,
                       .rows = rows,
                       .num_units = num_units,
                       .tokens = tokens,
                       .token_tiles = token_tiles,
                       .split = split,
                       .stages = stages_of<S>((num_units + split - 1) / split)};
  const CUtensorMap map = cuda::tensor_map({.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                            .data = x,
                                            .cols = static_cast<uint64_t>(w.cols),
                                            .rows = static_cast<uint64_t>(tokens),
                                            .pitch_bytes = static_cast<uint64_t>(2 * w.cols),
                                            .box_cols = 64,
                                            .box_rows = S::kN,
                                            .swizzle = CU_TENSOR_MAP_SWIZZLE_128B});
  // Never two blocks on an SM: see gemv.cuh. The sums may take more than what they lie over.
  const int bytes =
      args.stages * S::kStageBytes + S::kWeightBytes * ((num_units + split - 1) / split);
  const int sums = S::kSumBytes + (split - 1) * ((S::kN + split - 1) / split) * S::kPitch * 4;
  cuda::launch(cx.stream, gemm_split_kernel<S, Op>,
               {.grid = dim3(static_cast<unsigned>(tiles * split)),
                .block = dim3(S::kThreads),
                .smem_bytes = static_cast<size_t>(std::max({bytes, sums, 115 * 1024}) + 1024),
                .cluster = static_cast<unsigned>(split),
                .reads_inputs = Op::kHasPlaces},
               args, map, op);
}

// op.store() of x [tokens, K] W^T + b, up to kSplitTokens tokens.
template <class Op, class U = Unit<Format::kMxfp4>>
void launch_split(Ctx& cx, const Weight& w, const uint16_t* x, int tokens, const Op& op) {
  if (tokens == 0) return;
  CHECK(tokens <= kSplitTokens && w.experts == 1 && w.layout == Layout::kTiles16x64);
  CHECK(U::kHasRowScales == (w.row_scales != nullptr));
  if (tokens <= 16) return launch_split_of<SplitShape<16, U>>(cx, w, x, tokens, op);
  if (tokens <= 32) return launch_split_of<SplitShape<32, U>>(cx, w, x, tokens, op);
  if (tokens <= 64) return launch_split_of<SplitShape<64, U>>(cx, w, x, tokens, op);
  if (tokens > 128 && tokens <= 192)
    return launch_split_of<SplitShape<96, U>>(cx, w, x, tokens, op);
  launch_split_of<SplitShape<128, U>>(cx, w, x, tokens, op);
}

}  // namespace nibble::ops::gpu::sm90
