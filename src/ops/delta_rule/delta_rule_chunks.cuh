// What the kernels of delta_rule_chunks_cuda.cu share, and the first: inputs convolved and normed.
#pragma once

#include "cuda/half_rows.cuh"
#include "cuda/launch.cuh"
#include "ops/delta_rule/delta_rule.cuh"
#include "ops/span_chunks.cuh"

namespace nibble::ops::gpu::delta {

inline constexpr int kDim = 128, kChunk = kDeltaChunk, kTaps = 4, kFewTokens = kDeltaFewTokens;

using Chunks = SpanChunks<kChunk, kFewTokens>;
using RowsOfDim = cuda::HalfRows<kDim>;
using RowsOfChunk = cuda::HalfRows<kChunk>;

// A key head's rows of a chunk in f16, as they lie in shared memory; zeros behind the last token.
struct KeyImage {
  uint8_t k[kChunk * RowsOfDim::kPitch], q[kChunk * RowsOfDim::kPitch];
};
// Of a value head.
struct HeadImage {
  struct Writes {
    uint8_t w[kChunk * RowsOfDim::kPitch];  // W in f16
    float left[kChunk];                     // exp(G_64 - G)
    float units[kDim / 16];                 // of 16 columns of U
    float kept, unused[3];                  // exp(G_64)
  } writes;
  struct Reads {
    uint8_t p[kChunk * RowsOfChunk::kPitch];  // P in f16; above the diagonal's tiles: nothing
    float by[kChunk];                         // exp(G) / sqrt(DK)
  } reads;
  // U in f16, by 16 columns, 16 tokens and lane: columns g and g + 8 of tokens 2p and + 1, then of
  // tokens 2p + 8 and + 9.
  uint4 u[kDim / 16][kChunk / 16][32];
};
static_assert(sizeof(KeyImage) == kDeltaKeyBytes && sizeof(HeadImage) == kDeltaHeadBytes);

struct ChunkParams {
  Params a;        // decayed: log(decay), beta
  uint16_t* rows;  // [T, channels] f16: q and k normed, and v, each row of a head by a power of two
  float* powers;   // [T, HV] of v
  KeyImage* keys;  // [chunks, HK]
  HeadImage* heads;  // [chunks, HV]
};

__device__ __forceinline__ float warp_max(float x) {
  return __uint_as_float(__reduce_max_sync(0xffffffff, __float_as_uint(x)));
}
__device__ __forceinline__ float warp_max(const float (&x)[4]) {
  return warp_max(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])));
}
// Of a power of two.
__device__ __forceinline__ float inverse_power(float x) {
  return __uint_as_float((254u << 23) - __float_as_uint(x));
}
// The power of two by which values of up to `most` come below 2^15, as f16 holds them.
__device__ __forceinline__ float fitting(float most) {
  const unsigned exponent = min(max(__float_as_uint(most) >> 23, 87u), 250u);
  return __uint_as_float((268 - exponent) << 23);
}

// Its division to two ulps: the exact one takes tens of instructions.
__device__ __forceinline__ float quick_silu(float x) { return __fdividef(x, 1 + __expf(-x)); }

// The convolution of a tile of tokens, q and k normed, gates. A block has two rows of 128 of each
// token: q and k of a key head, or two of its value heads; grid (tiles, HK, 1 + HV / HK / 2).
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
    if (place.in_chunk) take(j, quick_silu(sum));
    before[0] = before[1], before[1] = before[2], before[2] = now;
    if (place.to >= 0 && place.in_chunk) {
#pragma unroll
      for (int i = 0; i < kTaps - 1; ++i) kept(place.to, i) = before[i];
    }
  }
}

static __global__ void __launch_bounds__(kPrepareThreads)
    prepare_tile(const __grid_constant__ ChunkParams c) {
  __shared__ __align__(16) float rows[kTile][2][kDim];
  __shared__ TokenPlace places[kTile];
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const Params& a = c.a;
  const int t0 = static_cast<int>(blockIdx.x) * kTile, tokens = min(kTile, a.num_tokens - t0);
  const int64_t g = blockIdx.y;
  const int thread = threadIdx.x, lane = thread % 32;
  const bool is_value = blockIdx.z > 0;
  const auto value = [&](int half) { return 2 * static_cast<int>(blockIdx.z) - 2 + half; };
  const auto is_there = [&](int half) { return !is_value || value(half) < a.d.ratio; };
  const auto head = [&](int half) { return g * a.d.ratio + value(half); };
  const auto channel = [&](int half) {
    return is_value ? 2 * a.d.key_width + head(half) * kDim : half * a.d.key_width + g * kDim;
  };
  if (thread < tokens) places[thread] = place_of_token<kFewTokens>(a, t0 + thread);
  __syncthreads();
  if (const int half = thread / kDim, of = thread % kDim; is_there(half)) {
    const int64_t at = is_value    ? place(g, a.d.first.v, a.d.step.v) + value(half) * kDim
                       : half != 0 ? place(g, a.d.first.k, a.d.step.k)
                                   : place(g, a.d.first.q, a.d.step.q);
    convolve_tile(a, places, t0, tokens, channel(half) + of, at + of,
                  [&](int j, float y) { rows[j][half][of] = y; });
  }
  __syncthreads();
  for (int i = thread / 32; i < 2 * tokens; i += kPrepareThreads / 32) {
    const int j = i / 2, half = i % 2;
    if (!places[j].in_chunk || !is_there(half)) continue;
    const float4 x = *reinterpret_cast<const float4*>(&rows[j][half][4 * lane]);
    float by;
    if (is_value) {
      const auto scale =
          cuda::largest_power(fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w))));
      by = scale.inverse;
      if (lane == 0) c.powers[int64_t{t0 + j} * a.d.value_heads + head(half)] = scale.power;
    } else {
      float squares = fmaf(x.x, x.x, x.y * x.y);
      squares = fmaf(x.z, x.z, squares), squares = fmaf(x.w, x.w, squares);
      by = 1 / sqrtf(warp_sum(squares) + 1e-6f);
    }
    uint16_t* const to = c.rows + int64_t{t0 + j} * a.d.channels + channel(half);
    reinterpret_cast<uint2*>(to)[lane] = {cuda::pack_f16(x.x * by, x.y * by),
                                          cuda::pack_f16(x.z * by, x.w * by)};
  }
  if (is_value) return;
  for (int i = thread; i < tokens * a.d.ratio; i += kPrepareThreads) {
    const int64_t t = t0 + i / a.d.ratio;
    const auto h = static_cast<int32_t>(g * a.d.ratio + i % a.d.ratio);
    const float2 both = log_decay_and_beta(a, t, h);
    *reinterpret_cast<float2*>(a.decayed + (t * a.d.value_heads + h) * 2) = {
        fmaxf(both.x, kLeastLogDecay), both.y};
  }
}

}  // namespace nibble::ops::gpu::delta
