// What the kernels of mamba2_chunks_cuda.cu share, and the first two: inputs convolved, and what of
// a chunk does not depend on the state before it.
#pragma once

#include "cuda/half_rows.cuh"
#include "cuda/launch.cuh"
#include "ops/mamba2/mamba2.cuh"
#include "ops/span_chunks.cuh"

namespace nibble::ops::gpu::mamba {

inline constexpr int kChunk = kMambaChunk, kFewTokens = kMambaFewTokens;
inline constexpr int kN = 128, kP = 64, kTaps = 4;
using Chunks = SpanChunks<kChunk, kFewTokens>;
using RowsOfN = cuda::HalfRows<kN>;
using RowsOfChunk = cuda::HalfRows<kChunk>;

// A group's C and B of a chunk in f16, as they lie in shared memory. Each row, of a token, by a
// power of two of its own.
struct GroupImage {
  uint8_t c[kChunk * RowsOfN::kPitch], b[kChunk * RowsOfN::kPitch];
};
// Of a head: P, and what rows are to be multiplied by; zeros behind the last token.
struct HeadImage {
  uint8_t p[kChunk * RowsOfChunk::kPitch];  // f16; above the diagonal's tiles: nothing
  float value[kChunk];                      // dt, and the power of B
  float last[kChunk];                       // exp(G_64 - G)
  float row[kChunk];                        // exp(G)
  float out[kChunk];                        // the power of C
  float kept, unused[3];                    // exp(G_64)
};
static_assert(sizeof(GroupImage) == kMambaGroupBytes && sizeof(HeadImage) == kMambaHeadBytes);

struct ChunkParams {
  Params a;            // decayed: of tokens in chunks the decay's logarithm
  GroupImage* groups;  // [chunks, G]
  HeadImage* heads;    // [chunks, NH]
};

// The convolution of a tile of tokens, a channel a thread. Grid (tiles, tiles of channels).
inline constexpr int kTile = 16, kPrepareThreads = 256;

__device__ __forceinline__ void convolve_tile(const Params& a, const TokenPlace* places, int t0,
                                              int tokens, int32_t channel) {
  const float4 w = *reinterpret_cast<const float4*>(a.w.conv + int64_t{channel} * kTaps);
  const float bias = a.w.conv_bias[channel];
  const float* const in = a.in + a.d.inner + channel;
  float x[kTile];
#pragma unroll
  for (int j = 0; j < kTile; ++j) x[j] = j < tokens ? __ldcg(in + int64_t{t0 + j} * a.d.width) : 0;
  const auto kept = [&](int32_t slot, int row) -> float& {
    return a.conv[(int64_t{slot} * (kTaps - 1) + row) * a.d.channels + channel];
  };
  float before[kTaps - 1];
  inputs_before(
      before, places[0], [&](int ago) { return __ldcg(in + int64_t{t0 - ago} * a.d.width); }, kept);
#pragma unroll
  for (int j = 0; j < kTile; ++j) {
    if (j >= tokens) break;
    const TokenPlace& place = places[j];
    if (place.at == 0) {
#pragma unroll
      for (int i = 0; i < kTaps - 1; ++i)
        before[i] = place.from == RecurrentLayer::kNoState ? 0 : kept(place.from, i);
    }
    float sum = fmaf(w.x, before[0], bias);
    sum = fmaf(w.y, before[1], sum), sum = fmaf(w.z, before[2], sum);
    a.mixed[int64_t{t0 + j} * a.d.channels + channel] = silu(fmaf(w.w, x[j], sum));
    before[0] = before[1], before[1] = before[2], before[2] = x[j];
    if (place.to >= 0) {
#pragma unroll
      for (int i = 0; i < kTaps - 1; ++i) kept(place.to, i) = before[i];
    }
  }
}

static __global__ void __launch_bounds__(kPrepareThreads)
    prepare_tile(const __grid_constant__ Params a) {
  __shared__ TokenPlace places[kTile];
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int t0 = static_cast<int>(blockIdx.x) * kTile, tokens = min(kTile, a.num_tokens - t0);
  const int thread = threadIdx.x;
  if (thread < tokens) places[thread] = place_of_token<kFewTokens>(a, t0 + thread);
  __syncthreads();
  const auto channel = static_cast<int32_t>(blockIdx.y * kPrepareThreads + thread);
  if (channel < a.d.channels) convolve_tile(a, places, t0, tokens, channel);
  if (blockIdx.y > 0) return;
  for (int i = thread; i < tokens * a.d.heads; i += kPrepareThreads) {
    const int j = i / a.d.heads, h = i % a.d.heads;
    const int64_t t = t0 + j;
    float2 gates = log_decay_and_dt(a, __ldcg(a.in + t * a.d.width + a.d.dt + h), h);
    gates.x = places[j].in_chunk ? fmaxf(gates.x, kLeastLogDecay) : expf(gates.x);
    reinterpret_cast<float2*>(a.decayed)[t * a.d.heads + h] = gates;
  }
}

// Within a chunk: a block a chunk and group, grid (chunks, G). A warp has 16 rows of C B^T by 32
// columns.
inline constexpr int kWithinThreads = 256, kWithinWarps = kWithinThreads / 32;
inline constexpr int kMostChunkHeads = kMambaMostHeads;  // of a group

// Rows of float32, `stride` apart, to f16, each by the power of two that makes its largest element
// one to two; zeros behind the last.
__device__ __forceinline__ void scale_rows(uint8_t* to, float* scales, const float* from,
                                           int64_t stride, int tokens) {
  const int lane = threadIdx.x % 32;
#pragma unroll 4
  for (int row = threadIdx.x / 32; row < kChunk; row += kWithinWarps) {
    float4 x{};
    if (row < tokens) x = __ldcg(reinterpret_cast<const float4*>(from + row * stride) + lane);
    const float most = fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
    const auto [power, by] = cuda::largest_power(most);
    *reinterpret_cast<uint2*>(to + row * RowsOfN::kPitch + lane * 8) = {
        cuda::pack_f16(x.x * by, x.y * by), cuda::pack_f16(x.z * by, x.w * by)};
    if (lane == 0) scales[row] = row < tokens ? power : 0;
  }
}

// By a warp: G of a head, and what its rows are multiplied by.
__device__ __forceinline__ void sum_decays(float* sums, HeadImage& to, const float* powers_of_b,
                                           const float* powers_of_c, const float2* gates,
                                           int64_t stride, int tokens) {
  const int lane = threadIdx.x % 32, first = 2 * lane;
  const float2 a = first < tokens ? __ldcg(gates + first * stride) : float2{0, 0};
  const float2 b = first + 1 < tokens ? __ldcg(gates + (first + 1) * stride) : float2{0, 0};
  float upto = a.x + b.x;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float other = __shfl_up_sync(0xffffffff, upto, step);
    if (lane >= step) upto += other;
  }
  const float last = __shfl_sync(0xffffffff, upto, 31);
  const float g[2] = {upto - b.x, upto}, dt[2] = {a.y, b.y};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int t = first + i;
    sums[t] = g[i];
    to.value[t] = powers_of_b[t] * dt[i];
    to.last[t] = expf(last - g[i]), to.row[t] = expf(g[i]), to.out[t] = powers_of_c[t];
  }
  if (lane == 0) to.kept = expf(last);
}

static __global__ void __launch_bounds__(kWithinThreads)
    within_chunk(const __grid_constant__ ChunkParams p) {
  __shared__ __align__(16) GroupImage image;
  __shared__ float powers_of_b[kChunk], powers_of_c[kChunk], sums[kMostChunkHeads][kChunk];
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const Params& a = p.a;
  const auto chunk = Chunks{a.spans, a.num_spans}.find(static_cast<int>(blockIdx.x));
  if (chunk.tokens == 0) return;
  const int group = static_cast<int>(blockIdx.y), first_head = group * a.d.group_heads;
  const float* const rows = a.mixed + chunk.first * a.d.channels + group * kN;
  scale_rows(image.c, powers_of_c, rows + a.d.c, a.d.channels, chunk.tokens);
  scale_rows(image.b, powers_of_b, rows + a.d.b, a.d.channels, chunk.tokens);
  __syncthreads();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  HeadImage* const heads = p.heads + int64_t{blockIdx.x} * a.d.heads + first_head;
  for (int i = warp; i < a.d.group_heads; i += kWithinWarps)
    sum_decays(
        sums[i], heads[i], powers_of_b, powers_of_c,
        reinterpret_cast<const float2*>(a.decayed) + chunk.first * a.d.heads + first_head + i,
        a.d.heads, chunk.tokens);
  auto* const out = reinterpret_cast<uint4*>(p.groups + int64_t{blockIdx.x} * gridDim.y + group);
  for (int i = threadIdx.x; i < static_cast<int>(sizeof(image) / 16); i += kWithinThreads)
    out[i] = reinterpret_cast<const uint4*>(&image)[i];

  const int m = warp % 4, half = warp / 4 * 32;
  const RowsOfN c{static_cast<uint32_t>(__cvta_generic_to_shared(image.c))},
      b{static_cast<uint32_t>(__cvta_generic_to_shared(image.b))};
  float cb[4][4] = {};
#pragma unroll 2
  for (int at = 0; at < kN && half <= 16 * m; at += 16) {
    uint32_t of_c[4];
    c.load(of_c, 16 * m, at);
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
      uint32_t of_b[4];
      b.load_b(of_b, half + 8 * n, at);
      cuda::mma_f16(cb[n], of_c[0], of_c[1], of_c[2], of_c[3], of_b[0], of_b[1]);
      cuda::mma_f16(cb[n + 1], of_c[0], of_c[1], of_c[2], of_c[3], of_b[2], of_b[3]);
    }
  }
  __syncthreads();  // sums are there
  const int row = 16 * m + lane / 4, column = half + 2 * (lane % 4);
  for (int h = 0; h < a.d.group_heads; ++h) {
    const float* const of = sums[h];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if ((half + 8 * n) / 16 > m) break;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int i = row + 8 * k, j = column + 8 * n;
        const float d0 = j <= i ? __expf(of[i] - of[j]) : 0;
        const float d1 = j + 1 <= i ? __expf(of[i] - of[j + 1]) : 0;
        *reinterpret_cast<uint32_t*>(heads[h].p + i * RowsOfChunk::kPitch + 2 * j) =
            cuda::pack_f16(d0 * cb[n][2 * k], d1 * cb[n][2 * k + 1]);
      }
    }
  }
}

}  // namespace nibble::ops::gpu::mamba
