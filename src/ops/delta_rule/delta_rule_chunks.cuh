// What the kernels of delta_rule_chunks_cuda.cu share, the first (inputs convolved and normed) and
// the last (o normed).
#pragma once

#include "cuda/half_rows.cuh"
#include "cuda/launch.cuh"
#include "ops/delta_rule/delta_rule.cuh"
#include "ops/span_chunks.cuh"

namespace nibble::ops::gpu::delta {

inline constexpr int kDim = 128, kChunk = kDeltaChunk, kTaps = 4, kFewTokens = kDeltaFewTokens;

// Columns of a state, and so of o, in a block of the third kernel: 16 times kGroups; kTiles of them
// make a head.
inline constexpr bool kIsSmall = NIBBLE_CUDA_SM == 121;  // 99 KB of shared memory
inline constexpr int kGroups = kIsSmall ? 2 : 4, kTiles = kDim / 16 / kGroups;
inline constexpr int kStages = kIsSmall ? 1 : 2;
// Whether the third kernel multiplies by wgmma. Then W, k and q lie in two panels of 64 columns,
// rows of 128 bytes, whose pieces of 16 are turned as cuda::sm90::swizzled_128() has them.
inline constexpr bool kByWgmma = NIBBLE_CUDA_SM == 90;
inline constexpr int kPanelBytes = kChunk * 128;

using Chunks = SpanChunks<kChunk, kFewTokens>;
using RowsOfDim = cuda::HalfRows<kDim>;
using RowsOfChunk = cuda::HalfRows<kChunk>;

// Where a piece of 16 bytes of a row of W, k or q lies.
__device__ __forceinline__ int place_of_piece(int row, int piece) {
  if constexpr (kByWgmma) return piece / 8 * kPanelBytes + row * 128 + ((piece % 8 ^ row % 8) << 4);
  return row * RowsOfDim::kPitch + piece * 16;
}

// A key head's rows of a chunk in f16, as they lie in shared memory; zeros behind the last token.
struct KeyImage {
  uint8_t k[kChunk * RowsOfDim::kPitch], q[kChunk * RowsOfDim::kPitch];
};
// Of a value head.
struct HeadImage {
  struct Writes {
    uint8_t w[kChunk * RowsOfDim::kPitch];  // W in f16
    struct Decays {
      float left[kChunk];      // exp(G_64 - G)
      float units[kDim / 16];  // of 16 columns of U
      float kept, unused[3];   // exp(G_64)
    } decays;
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
  Params a;        // decayed: log(decay), beta; att holds o in f16 until it is normed
  uint16_t* rows;  // [T, channels] f16: q and k normed, and v, each row of a head by a power of two
  float* powers;   // [T, HV] of v
  KeyImage* keys;  // [chunks, HK]
  HeadImage* heads;  // [chunks, HV]
  float* o_powers;   // [T, HV, kTiles] of o
};
static_assert(kTiles <= 4);  // scratch_bytes()

// The chunks of a launch. While the states of some chunks follow one another, on a part of the GPU,
// the products of the next ones and the norms of those before are made: what these read is complete
// when they start, and only their last block waits, so that they end behind the launch in front.
struct Piece {
  int first, end;
  bool starts_early;
};
template <bool kAtEnd>
__device__ __forceinline__ void wait_of_piece(const Piece& piece) {
  const bool is_last = blockIdx.x + 1 == gridDim.x && blockIdx.y + 1 == gridDim.y;
  if (piece.starts_early ? kAtEnd && is_last : !kAtEnd) cuda::griddep_wait();
}

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

// By this a float32 is multiplied where it becomes TF32: matrix instructions cut its lower 13 bits
// off, which takes half a unit of 2^-10 on average, of a significand of 1 to 2. Rounding takes four
// instructions.
inline constexpr float kBeforeCut = 1 + 0x1p-11f / 1.44f;

// To some ulps, in two instructions and five: exact ones take tens. Powers below 2^-126 are zero.
__device__ __forceinline__ float quick_exp(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504f));
  return power;
}
__device__ __forceinline__ float quick_silu(float x) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1 + quick_exp(-x)));
  return x * inverse;
}

// The convolution of a tile of tokens, q and k normed, gates. A warp has the 128 channels of a head
// of q, k or v, four a lane; grid (tiles, heads of all three / 4).
inline constexpr int kTile = 32, kPrepareThreads = 128, kPrepareWarps = kPrepareThreads / 32;

// Where the r-th head of q, k and v lies in a row of qkvz.
__device__ __forceinline__ int64_t place_of_row(const Dims& d, int r) {
  const int keys = d.value_heads / d.ratio, h = r - 2 * keys;
  if (r < keys) return place(r, d.first.q, d.step.q);
  if (r < 2 * keys) return place(r - keys, d.first.k, d.step.k);
  return place(h / d.ratio, d.first.v, d.step.v) + h % d.ratio * kDim;
}

__device__ __forceinline__ float4 fma(float4 w, float4 x, float4 sum) {
  return {fmaf(w.x, x.x, sum.x), fmaf(w.y, x.y, sum.y), fmaf(w.z, x.z, sum.z),
          fmaf(w.w, x.w, sum.w)};
}

// A lane's four channels, the first `channel`, which lies at `at` of a token's row, through a tile:
// take(in_chunk, values) takes each token's.
template <class Take>
__device__ __forceinline__ void convolve_tile(const Params& a, const TokenPlace* places, int t0,
                                              int tokens, int64_t channel, int64_t at,
                                              const Take& take) {
  const float* next = a.qkvz + int64_t{t0} * a.d.width + at;
  const auto kept = [&](int32_t slot, int row) -> float4& {
    return *reinterpret_cast<float4*>(a.conv + (int64_t{slot} * (kTaps - 1) + row) * a.d.channels +
                                      channel);
  };
  constexpr int kAtOnce = 8;  // tokens on their way, of a lane's own
  static_assert(kTile % kAtOnce == 0);
  __shared__ float4 ring[kAtOnce][kPrepareThreads];
  const auto fetch = [&](int i, bool is_there) {
    if (is_there) cuda::async_copy_16(cuda::shared_address(&ring[i][threadIdx.x]), next);
    cuda::async_copy_commit();
    next += a.d.width;
  };
  float4 w[kTaps], ago[kTaps - 1], before[kTaps - 1];
#pragma unroll
  for (int i = 0; i < kTaps - 1; ++i)
    ago[i] = t0 + i >= kTaps - 1
                 ? __ldcg(reinterpret_cast<const float4*>(next + (i - (kTaps - 1)) * a.d.width))
                 : float4{};
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) fetch(i, i < tokens);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 taps = *reinterpret_cast<const float4*>(a.w.conv + (channel + i) * kTaps);
    reinterpret_cast<float*>(&w[0])[i] = taps.x, reinterpret_cast<float*>(&w[1])[i] = taps.y;
    reinterpret_cast<float*>(&w[2])[i] = taps.z, reinterpret_cast<float*>(&w[3])[i] = taps.w;
  }
  __syncthreads();  // places are there
  const TokenPlace first = places[0], last = places[tokens - 1];
  inputs_before(
      before, first, [&](int i) { return ago[kTaps - 1 - i]; }, kept);
  // What a sequence's first token finds, and its last one leaves.
  const auto begin = [&](int32_t from) {
#pragma unroll
    for (int i = 0; i < kTaps - 1; ++i)
      before[i] = from == RecurrentLayer::kNoState ? float4{} : kept(from, i);
  };
  const auto end = [&](int32_t to) {
#pragma unroll
    for (int i = 0; i < kTaps - 1; ++i) kept(to, i) = before[i];
  };
  const bool is_of_one = last.at - first.at + 1 == tokens && first.in_chunk;  // span
  if (is_of_one && first.at == 0) begin(first.from);
#pragma unroll 1
  for (int j0 = 0; j0 < tokens; j0 += kAtOnce) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int j = j0 + i;
      if (j >= tokens) break;
      cuda::async_copy_wait<kAtOnce - 1>();
      const float4 now = ring[i][threadIdx.x];
      fetch(i, j + kAtOnce < tokens);
      if (!is_of_one && places[j].at == 0) begin(places[j].from);
      const float4 sum = fma(
          w[3], now, fma(w[2], before[2], fma(w[1], before[1], fma(w[0], before[0], float4{}))));
      take(is_of_one || places[j].in_chunk,
           float4{quick_silu(sum.x), quick_silu(sum.y), quick_silu(sum.z), quick_silu(sum.w)});
      before[0] = before[1], before[1] = before[2], before[2] = now;
      if (!is_of_one && places[j].in_chunk && places[j].to >= 0) end(places[j].to);
    }
  }
  if (is_of_one && last.to >= 0) end(last.to);
}

static __global__ void __launch_bounds__(kPrepareThreads, 7)
    prepare_tile(const __grid_constant__ ChunkParams c) {
  __shared__ TokenPlace places[kTile];
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const Params& a = c.a;
  const int t0 = static_cast<int>(blockIdx.x) * kTile, tokens = min(kTile, a.num_tokens - t0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int keys = a.d.value_heads / a.d.ratio, rows = 2 * keys + a.d.value_heads;
  const int r = static_cast<int>(blockIdx.y * kPrepareWarps + threadIdx.x / 32);
  const int h = r - 2 * keys;  // of values
  if (static_cast<int>(threadIdx.x) < tokens)
    places[threadIdx.x] = place_of_token<kFewTokens>(a, t0 + static_cast<int>(threadIdx.x));
  if (r >= rows) return __syncthreads();
  const int64_t channel = r * kDim + 4 * lane;
  uint16_t* to = c.rows + int64_t{t0} * a.d.channels + channel;
  float* powers = c.powers + int64_t{t0} * a.d.value_heads + h;
  convolve_tile(
      a, places, t0, tokens, channel, place_of_row(a.d, r) + 4 * lane,
      [&](bool in_chunk, float4 x) {
        asm volatile("" : "+l"(to), "+l"(powers));  // or those of all tokens would be kept
        float by;
        if (h >= 0) {
          const auto scale = cuda::largest_power(
              fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w))));
          by = scale.inverse;
          if (in_chunk && lane == 0) *powers = scale.power;
        } else {
          float squares = fmaf(x.x, x.x, x.y * x.y);
          squares = fmaf(x.z, x.z, squares), squares = fmaf(x.w, x.w, squares);
          by = rsqrtf(warp_sum(squares) + 1e-6f);
        }
        if (in_chunk)
          *reinterpret_cast<uint2*>(to) = {cuda::pack_f16(x.x * by, x.y * by),
                                           cuda::pack_f16(x.z * by, x.w * by)};
        to += a.d.channels, powers += a.d.value_heads;
      });
  if (h < 0 || lane >= tokens) return;
  const int64_t t = t0 + lane;
  const float2 both = log_decay_and_beta(a, t, h);
  *reinterpret_cast<float2*>(a.decayed + (t * a.d.value_heads + h) * 2) = {
      fmaxf(both.x, kLeastLogDecay), both.y};
}

// att = norm * o / sqrt(mean(o^2) + eps) * silu(z), of o in f16 in att's place. A warp has kHeads
// heads of a token, four dims a lane; grid (chunks of a piece, 64 HV / kHeads / 8).
inline constexpr int kNormThreads = 256, kHeads = 4, kNormHeads = kHeads * kNormThreads / 32;

static __device__ __forceinline__ void norm_outputs_of(const ChunkParams& c, const Piece& piece) {
  const Params& a = c.a;
  const auto chunk = Chunks{a.spans, a.num_spans}.find(piece.first + static_cast<int>(blockIdx.x));
  const int lane = threadIdx.x % 32;
  const auto at = static_cast<int>(blockIdx.y) % kChunk;
  if (at >= chunk.tokens) return;
  const int64_t t = chunk.first + at;
  const int first = static_cast<int>(blockIdx.y / kChunk * kNormHeads + threadIdx.x / 32 * kHeads);
  const auto is_there = [&](int i) { return first + i < a.d.value_heads; };
  const int64_t row = t * a.d.value_heads + first;
  auto* const att = reinterpret_cast<uint2*>(a.att + row * kDim + 4 * lane);
  uint2 o[kHeads];
  float4 z[kHeads];
  float power[kHeads];
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const int h = first + i;
    const auto* const of_z = reinterpret_cast<const float4*>(
        a.qkvz + t * a.d.width + place(h / a.d.ratio, a.d.first.z, a.d.step.z) +
        h % a.d.ratio * kDim);
    o[i] = is_there(i) ? __ldcg(att + i * kDim / 4) : uint2{};
    power[i] = is_there(i) ? __ldcg(c.o_powers + (row + i) * kTiles + lane / (32 / kTiles)) : 0;
    z[i] = is_there(i) ? __ldcg(of_z + lane) : float4{};
  }
  const float4 weight = reinterpret_cast<const float4*>(a.w.norm)[lane];
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    float2 x = cuda::f16_values(o[i].x), y = cuda::f16_values(o[i].y);
    x.x *= power[i], x.y *= power[i], y.x *= power[i], y.y *= power[i];
    float squares = fmaf(x.x, x.x, x.y * x.y);
    squares = fmaf(y.x, y.x, squares), squares = fmaf(y.y, y.y, squares);
    const float by = rsqrtf(warp_sum(squares) / kDim + a.w.eps);
    if (is_there(i))
      att[i * kDim / 4] = {cuda::pack_bf16(weight.x * x.x * by * quick_silu(z[i].x),
                                           weight.y * x.y * by * quick_silu(z[i].y)),
                           cuda::pack_bf16(weight.z * y.x * by * quick_silu(z[i].z),
                                           weight.w * y.y * by * quick_silu(z[i].w))};
  }
}

static __global__ void __launch_bounds__(kNormThreads)
    norm_outputs(const __grid_constant__ ChunkParams c, Piece piece) {
  wait_of_piece<false>(piece);
  cuda::griddep_launch_dependents();
  norm_outputs_of(c, piece);
  wait_of_piece<true>(piece);
}

}  // namespace nibble::ops::gpu::delta
