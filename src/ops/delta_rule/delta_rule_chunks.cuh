// What the kernels of delta_rule_chunks_cuda.cu share, and the first: inputs convolved and normed.
#pragma once

#include "cuda/half_rows.cuh"
#include "cuda/launch.cuh"
#include "ops/delta_rule/delta_rule.cuh"
#include "ops/span_chunks.cuh"

namespace nibble::ops::gpu::delta {

inline constexpr int kDim = 128, kChunk = kDeltaChunk, kTaps = 4, kFewTokens = kDeltaFewTokens;

struct ChunkParams {
  Params a;  // mixed: q and k are f16, in the first half of their places; decayed: log(decay), beta
  uint16_t* w;  // [chunks, HV, 64, 128] f16
  uint16_t* p;  // [chunks, HV, 64, 64] f16; above the diagonal's tiles: nothing
  float* sums;  // [chunks, HV, 64] G
};

using Chunks = SpanChunks<kChunk, kFewTokens>;
using cuda::HalfRows;

// The convolution of a tile of tokens, q and k normed, gates. Grid (tiles, HK).
inline constexpr int kTile = 16, kPrepareThreads = 256;

// The inputs of one channel through a tile: y(j, value) takes token j's.
template <class Take>
__device__ __forceinline__ void convolve_tile(const Params& a, const TokenPlace* places, int t0,
                                              int tokens, int64_t channel, int64_t at,
                                              const Take& take) {
  const float4 w = *reinterpret_cast<const float4*>(a.w.conv + channel * kTaps);
  float x[kTaps - 1 + kTile];
#pragma unroll
  for (int j = 0; j < kTile; ++j)
    x[kTaps - 1 + j] = j < tokens ? __ldcg(a.qkvz + int64_t{t0 + j} * a.d.width + at) : 0;
  const auto kept = [&](int32_t slot, int row) -> float& {
    return a.conv[(int64_t{slot} * (kTaps - 1) + row) * a.d.channels + channel];
  };
  float before[kTaps - 1];
  inputs_before(
      before, places[0],
      [&](int ago) { return __ldcg(a.qkvz + int64_t{t0 - ago} * a.d.width + at); }, kept);
#pragma unroll
  for (int j = 0; j < kTile; ++j) {
    if (j >= tokens) break;
    const TokenPlace& place = places[j];
    if (place.at == 0) {
#pragma unroll
      for (int i = 0; i < kTaps - 1; ++i)
        before[i] = place.from == RecurrentLayer::kNoState ? 0 : kept(place.from, i);
    }
    const float now = x[kTaps - 1 + j];
    float sum = w.x * before[0];
    sum = fmaf(w.y, before[1], sum), sum = fmaf(w.z, before[2], sum), sum = fmaf(w.w, now, sum);
    if (place.in_chunk) take(j, silu(sum));
    before[0] = before[1], before[1] = before[2], before[2] = now;
    if (place.to >= 0 && place.in_chunk) {
#pragma unroll
      for (int i = 0; i < kTaps - 1; ++i) kept(place.to, i) = before[i];
    }
  }
}

static __global__ void __launch_bounds__(kPrepareThreads)
    prepare_tile(const __grid_constant__ Params a) {
  __shared__ __align__(16) float qk[kTile][2 * kDim];
  __shared__ TokenPlace places[kTile];
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int t0 = static_cast<int>(blockIdx.x) * kTile, tokens = min(kTile, a.num_tokens - t0);
  const int64_t g = blockIdx.y;
  const int values = a.d.ratio * kDim, thread = threadIdx.x;
  if (thread < tokens) places[thread] = place_of_token<kFewTokens>(a, t0 + thread);
  __syncthreads();
  for (int i = thread; i < 2 * kDim + values; i += kPrepareThreads) {
    if (i >= 2 * kDim) {
      const int64_t channel = 2 * a.d.key_width + g * values + i - 2 * kDim;
      convolve_tile(a, places, t0, tokens, channel,
                    place(g, a.d.first.v, a.d.step.v) + i - 2 * kDim,
                    [&](int j, float y) { a.mixed[int64_t{t0 + j} * a.d.channels + channel] = y; });
    } else {
      const bool is_k = i >= kDim;
      const int of = i % kDim;
      convolve_tile(
          a, places, t0, tokens, (is_k ? a.d.key_width : 0) + g * kDim + of,
          (is_k ? place(g, a.d.first.k, a.d.step.k) : place(g, a.d.first.q, a.d.step.q)) + of,
          [&](int j, float y) { qk[j][i] = y; });
    }
  }
  __syncthreads();
  for (int i = thread / 32; i < 2 * tokens; i += kPrepareThreads / 32) {
    const int j = i / 2;
    if (!places[j].in_chunk) continue;
    const bool is_k = i % 2 != 0;
    const float4 x = *reinterpret_cast<const float4*>(&qk[j][is_k * kDim + thread % 32 * 4]);
    float squares = fmaf(x.x, x.x, x.y * x.y);
    squares = fmaf(x.z, x.z, squares), squares = fmaf(x.w, x.w, squares);
    const float by = 1 / sqrtf(warp_sum(squares) + 1e-6f);
    float* const to =
        a.mixed + int64_t{t0 + j} * a.d.channels + (is_k ? a.d.key_width : 0) + g * kDim;
    reinterpret_cast<uint2*>(to)[thread % 32] = {cuda::pack_f16(x.x * by, x.y * by),
                                                 cuda::pack_f16(x.z * by, x.w * by)};
  }
  for (int i = thread; i < tokens * a.d.ratio; i += kPrepareThreads) {
    const int j = i / a.d.ratio;
    const int64_t t = t0 + j;
    const auto h = static_cast<int32_t>(g * a.d.ratio + i % a.d.ratio);
    const float2 both = log_decay_and_beta(a, t, h);
    *reinterpret_cast<float2*>(a.decayed + (t * a.d.value_heads + h) * 2) = {
        fmaxf(both.x, kLeastLogDecay), both.y};
  }
}

}  // namespace nibble::ops::gpu::delta
