// Dense products of up to 64 tokens by wgmma: y[t] = x[t] W^T + b. Weights and x both stream.
//
//   weights  in   NVFP4 in kTiles16x64, [N / 16][K / 64] units, dequantized to bf16 (unit.cuh), and
//                 of rows [N] f32
//   x        in   [T, K] bf16
//   Op       out  store(), as gemm_split_sm90.cuh's
//
// K % 256 == 0. A block takes 192 or 256 rows and all of K, or of fewer rows a share of it, whose
// sums meet in L2 (shares_sm90.cuh); each warp brings its 16 rows through a
// ring of its own, which fills before griddep_wait(), in chunks of 4 units of 64 k; x comes by the
// copy engine, 4 units at a time.
//
// Sums: one chain over a share of K, then shares in sequence: the same for every token of a step,
// whatever the others hold.
//
// Bytes: N K 9 / 16 + T (2 K + 4 N); Qwen3-8B's gate and up (24,576 x 4,096): 56.6 MB, 12.9 us at
// 4.4 TB/s.
#pragma once

#include "ops/gpu_matmul/gemm_split_sm90.cuh"
#include "ops/gpu_matmul/shares_sm90.cuh"
#include "ops/gpu_matmul/stream_plan.h"

namespace nibble::ops::gpu::sm90 {

inline constexpr int kStreamUnits = 4;  // of a chunk

template <int kN_, int kRows_>
struct StreamShape {
  using Unit = gpu::Unit<Format::kNvfp4>;
  static constexpr int kN = kN_, kRows = kRows_, kThreads = 2 * kRows, kWarps = kThreads / 32;
  static constexpr int kStageBytes = kN * 128, kXBytes = kStreamUnits * kStageBytes;
  static constexpr int kChunkBytes = kStreamUnits * Unit::kBytes;
  static constexpr int kSlots = kRows == 192 ? 4 : 3;  // of a warp
  static constexpr int kWeightBytes = kWarps * kSlots * kChunkBytes;
  static constexpr int kXSlots = std::min(8, (kSplitBytes - kWeightBytes) / kXBytes);
  static_assert(kXSlots >= 3);
  static constexpr int kPitch = kRows + 4;  // floats
  static constexpr int kSumBytes = kN * kPitch * 4;
  static constexpr int kBytes =
      std::max({kWeightBytes + kXSlots * kXBytes, kSumBytes, 115 * 1024}) + 1024;
};

// 4 units of x, by one thread.
template <class S>
__device__ __forceinline__ void fetch_stream_x(const CUtensorMap& x, const SplitBlock& b, int chunk,
                                               int slot) {
  barrier_expect(b.full + slot * 8, S::kXBytes);
#pragma unroll
  for (int u = 0; u < kStreamUnits; ++u)
    copy_box(b.smem + slot * S::kXBytes + u * S::kStageBytes, x,
             (b.begin + chunk * kStreamUnits + u) * 64, 0, b.full + slot * 8);
}

// A warp's row tile of weights on its way.
template <class S>
struct StreamWeights {
  const uint8_t* from;  // the next chunk
  uint32_t data, barriers;
  int left;  // chunks
  int slot = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void fetch(int to) {
    if (left == 0) return;
    if (threadIdx.x % 32 == 0)
      cuda::bulk_copy(data + to * S::kChunkBytes, from, S::kChunkBytes, barriers + to * 8,
                      cuda::evict_first());
    from += S::kChunkBytes, --left;
  }
  __device__ __forceinline__ uint32_t take() const {
    barrier_wait_together(barriers + slot * 8, phase);
    return data + slot * S::kChunkBytes;
  }
  __device__ __forceinline__ void release() {
    __syncwarp();
    fetch(slot);
    if (++slot == S::kSlots) slot = 0, phase ^= 1;
  }
};

// As multiply_split().
template <class S>
__device__ __forceinline__ void multiply_stream(const CUtensorMap& xs, const SplitBlock& b,
                                                StreamWeights<S>& weights, float (&d)[S::kN / 2]) {
  constexpr int kN = S::kN;
  using U = typename S::Unit;
  const int lane = threadIdx.x % 32, chunks = b.num_units / kStreamUnits;
  uint32_t a0[2][4], a1[2][4];
  int slot = 0, previous = 0;
  uint32_t phase = 0, previous_phase = 0;
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const uint32_t w = weights.take();
    barrier_wait_together(b.full + slot * 8, phase);
    const uint32_t x = uniform(static_cast<uint32_t>(swizzled_128(b.smem + slot * S::kXBytes)));
#pragma unroll
    for (int u = 0; u < kStreamUnits; ++u) {
      const auto q = load_codes<U>(w + u * U::kBytes + lane * 16);
      const typename U::Scales s = load_scales<U>(w + u * U::kBytes);
      const uint32_t at = x + u * (S::kStageBytes / 16);
      wgmma_wait<1>();
      decode_half<U, 0>(q, s, a0[0], a0[1]);
      wgmma_fence();
      wgmma_bf16<kN>(d, a0[0], at, chunk + u > 0);
      wgmma_bf16<kN>(d, a0[1], at + 2, 1);
      wgmma_commit();
      wgmma_wait<1>();
      if (u == 0 && chunk > 0 && lane == 0) barrier_arrive(b.empty + previous * 8);
      if (u == 2 && chunk > 0 && threadIdx.x == 0 && chunk - 1 + S::kXSlots < chunks) {
        barrier_wait(b.empty + previous * 8, previous_phase);
        fetch_stream_x<S>(xs, b, chunk - 1 + S::kXSlots, previous);
      }
      __syncwarp();
      decode_half<U, 1>(q, s, a1[0], a1[1]);
      wgmma_fence();
      wgmma_bf16<kN>(d, a1[0], at + 4, 1);
      wgmma_bf16<kN>(d, a1[1], at + 6, 1);
      wgmma_commit();
    }
    weights.release();
    previous = slot, previous_phase = phase;
    if (++slot == S::kXSlots) slot = 0, phase ^= 1;
  }
  wgmma_wait<0>();
}

template <class S, class Op>
__global__ void __launch_bounds__(S::kThreads, 1)
    gemm_stream_kernel(const __grid_constant__ SplitArgs g, const __grid_constant__ CUtensorMap x,
                       const __grid_constant__ Shares shares, const __grid_constant__ Op op) {
  extern __shared__ char raw[];
  __shared__ __align__(8) uint64_t full[S::kXSlots], empty[S::kXSlots],
      weights_there[S::kWarps * S::kSlots];
  cuda::griddep_launch_dependents();
  char* base = raw + (1024 - shared_address(raw) % 1024) % 1024;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int block_tile = static_cast<int>(blockIdx.x) / shares.count;
  const int share = static_cast<int>(blockIdx.x) % shares.count;
  const int row0 = block_tile * S::kRows, all_chunks = g.num_units / kStreamUnits;
  const int begin = all_chunks * share / shares.count;
  const int chunks = all_chunks * (share + 1) / shares.count - begin;
  const SplitBlock b{.smem = shared_address(base),
                     .full = shared_address(full),
                     .empty = shared_address(empty),
                     .weights_there = shared_address(weights_there),
                     .sums_there = 0,
                     .row0 = row0,
                     .token0 = 0,
                     .begin = begin * kStreamUnits,
                     .num_units = chunks * kStreamUnits};
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::kXSlots; ++s) {
      barrier_init(b.full + s * 8, 1);
      barrier_init(b.empty + s * 8, S::kWarps);
    }
    for (int s = 0; s < S::kWarps * S::kSlots; ++s) barrier_init(b.weights_there + s * 8, 1);
    barrier_init_fence();
  }
  __syncthreads();
  const int tile = min(row0 / 16 + warp, g.rows / 16 - 1);  // without one: the last
  StreamWeights<S> weights{
      .from = g.units + (int64_t{tile} * g.num_units + b.begin) * S::Unit::kBytes,
      .data = b.smem + S::kXSlots * S::kXBytes + warp * S::kSlots * S::kChunkBytes,
      .barriers = b.weights_there + warp * S::kSlots * 8,
      .left = chunks};
  for (int s = 0; s < S::kSlots; ++s) weights.fetch(s);
  if (threadIdx.x == 0) {
    cuda::griddep_wait();
    for (int c = 0; c < min(S::kXSlots, chunks); ++c) fetch_stream_x<S>(x, b, c, c);
  }
  __syncwarp();
  float d[S::kN / 2];
  multiply_stream<S>(x, b, weights, d);
  if (shares.count > 1) {
    cuda::griddep_wait();
    meet_shares<S::kN>(shares, block_tile, share, S::kThreads, d);
    const int first = row0 + warp * 16, row = first + lane / 4;
    if (first >= g.rows) return;
    RowEnds ends{.back = {kSumFactor * g.row_scales[row], kSumFactor * g.row_scales[row + 8]}};
    ends.read_bias(g.bias, row);
    return store_sums<S::kN>(d, {shares.count, share}, ends, first, g.tokens, op);
  }
  __syncthreads();  // everything has been read: the sums lie over it
  float* sums = reinterpret_cast<float*>(base) + lane % 4 * 2 * S::kPitch + warp * 16 + lane / 4;
#pragma unroll
  for (int j = 0; j < S::kN / 8; ++j, sums += 8 * S::kPitch) {
    sums[0] = d[4 * j];
    sums[S::kPitch] = d[4 * j + 1];
    sums[8] = d[4 * j + 2];
    sums[S::kPitch + 8] = d[4 * j + 3];
  }
  __syncthreads();
  cuda::griddep_wait();  // of every thread that stores
  finish_split<S>(g, b, 0, SplitShare(g.tokens, 0, 1), nullptr, op);
}

template <class S, class Op>
void launch_stream_of(Ctx& cx, const Weight& w, const uint16_t* x, int tokens, const Shares& shares,
                      const Op& op) {
  const SplitArgs args{.units = w.codes,
                       .row_scales = w.row_scales,
                       .bias = w.bias,
                       .rows = static_cast<int>(w.rows),
                       .num_units = static_cast<int>(w.cols / 64),
                       .tokens = tokens,
                       .token_tiles = 1,
                       .split = 1,
                       .stages = 0};
  const CUtensorMap map = cuda::tensor_map({.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                            .data = x,
                                            .cols = static_cast<uint64_t>(w.cols),
                                            .rows = static_cast<uint64_t>(tokens),
                                            .pitch_bytes = static_cast<uint64_t>(2 * w.cols),
                                            .box_cols = 64,
                                            .box_rows = S::kN,
                                            .swizzle = CU_TENSOR_MAP_SWIZZLE_128B});
  cuda::launch(
      cx.stream, gemm_stream_kernel<S, Op>,
      {.grid = dim3(static_cast<unsigned>((w.rows + S::kRows - 1) / S::kRows * shares.count)),
       .block = dim3(S::kThreads),
       .smem_bytes = static_cast<size_t>(S::kBytes)},
      args, map, shares, op);
}

// op.store() of x [tokens, K] W^T + b, up to kStreamTokens tokens.
template <class Op>
void launch_stream(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x, int tokens,
                   const Op& op) {
  if (tokens == 0) return;
  CHECK(tokens <= kStreamTokens && w.experts == 1 && w.layout == Layout::kTiles16x64);
  CHECK(w.format == Format::kNvfp4 && w.cols % (kStreamUnits * 64) == 0);
  const int num_sms = cx.kernels.gpu.num_sms;
  const StreamPlan plan = plan_unit_stream(w.rows, w.cols, num_sms);
  Shares shares{.count = plan.shares};
  if (plan.shares > 1) {
    shares.parts = scratch.take<float4>(stream_parts(w.rows, tokens) / 4);
    shares.counters = cx.counters;
    CHECK((w.rows + plan.of_block - 1) / plan.of_block * plan.shares <= num_sms);
  }
  const auto launch = [&]<int kN>() {
    if (plan.of_block == 256)
      return launch_stream_of<StreamShape<kN, 256>>(cx, w, x, tokens, shares, op);
    launch_stream_of<StreamShape<kN, 192>>(cx, w, x, tokens, shares, op);
  };
  if (tokens <= 16) return launch.template operator()<16>();
  if (tokens <= 32) return launch.template operator()<32>();
  launch.template operator()<64>();
}

}  // namespace nibble::ops::gpu::sm90
