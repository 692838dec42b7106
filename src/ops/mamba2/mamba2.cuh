// Device code of mamba2 that its CUDA rows share. One order of every sum, in whichever row: a
// token's bits do not tell which ran.
#pragma once

#include "base/check.h"
#include "cuda/bf16.cuh"
#include "ops/mamba2/mamba2.h"
#include "ops/norm/add_norm.cuh"

namespace nibble::ops::gpu::mamba {

inline constexpr int kMostTaps = 8, kMostStateDim = 256, kMostGroupHeads = 256;

// Of Mamba2Desc.
struct Dims {
  int32_t heads, group_heads, head_dim, state_dim, taps;
  int32_t inner, channels, width, b, c, dt;
  float dt_least, dt_most;
};
inline Dims dims_of(const Mamba2Desc& d) {
  const auto narrow = [](int64_t n) { return static_cast<int32_t>(n); };
  return {.heads = narrow(d.heads),
          .group_heads = narrow(d.group_heads()),
          .head_dim = narrow(d.head_dim),
          .state_dim = narrow(d.state_dim),
          .taps = narrow(d.taps),
          .inner = narrow(d.inner()),
          .channels = narrow(d.channels()),
          .width = narrow(d.width()),
          .b = narrow(d.b()),
          .c = narrow(d.c()),
          .dt = narrow(d.dt()),
          .dt_least = d.dt_least,
          .dt_most = d.dt_most};
}

struct Params {
  Dims d;
  Mamba2Weights w;
  const float* in;
  uint16_t* att;
  float* state;
  float* conv;
  const int32_t* from;
  const int32_t* to;
  const Span* spans;
  int32_t num_spans, num_tokens;
  // Of rows in several launches.
  float* mixed = nullptr;    // [T, channels]: x, B, C convolved; y comes in the place of x
  float* decayed = nullptr;  // [T, NH, 2]: decay, dt
};
inline Params params_of(const Tensor& att, const RecurrentLayer& state, const Tensor& in,
                        const Mamba2Desc& desc, const Mamba2Weights& weights, const Step& s) {
  CHECK(desc.state_dim <= kMostStateDim && desc.taps <= kMostTaps &&
        desc.group_heads() <= kMostGroupHeads);
  return {.d = dims_of(desc),
          .w = weights,
          .in = in.as<float>(),
          .att = att.as<uint16_t>(),
          .state = state.state.as<float>(),
          .conv = state.conv.as<float>(),
          .from = state.from,
          .to = state.to,
          .spans = s.spans,
          .num_spans = s.num_spans,
          .num_tokens = s.num_tokens};
}

__device__ __forceinline__ float silu(float x) { return x / (1 + __expf(-x)); }

// A channel's input at token t of a span, which may lie before the step.
__device__ __forceinline__ float input_at(const Params& a, const Span& span, int32_t from,
                                          int32_t t, int32_t channel) {
  if (t >= 0) return __ldcg(a.in + int64_t{span.q_start + t} * a.d.width + a.d.inner + channel);
  if (from == RecurrentLayer::kNoState) return 0;
  const int64_t row = int64_t{from} * (a.d.taps - 1) + a.d.taps - 1 + t;
  return __ldcg(a.conv + row * a.d.channels + channel);
}

// The convolution of one channel; a span's last token keeps its inputs, if `keeps`.
__device__ __forceinline__ float convolve(const Params& a, const Span& span, int32_t from,
                                          int32_t t, int32_t channel, bool keeps) {
  const int taps = a.d.taps;
  const bool is_last = keeps && t + 1 == span.q_len;
  float* const kept = a.conv + int64_t{a.to[span.slot]} * (taps - 1) * a.d.channels + channel;
  float sum = a.w.conv_bias[channel];
  constexpr int kAtOnce = 4;  // loads in flight
  for (int first = 0; first < taps; first += kAtOnce) {
    float x[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      x[i] = first + i < taps ? input_at(a, span, from, t - taps + 1 + first + i, channel) : 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int j = first + i;
      if (j < taps) sum = fmaf(a.w.conv[int64_t{channel} * taps + j], x[i], sum);
      if (is_last && j > 0 && j < taps) kept[int64_t{j - 1} * a.d.channels] = x[i];
    }
  }
  return silu(sum);
}

// Of head h; `in`: its dt as it came.
__device__ __forceinline__ float2 log_decay_and_dt(const Params& a, float in, int32_t h) {
  const float x = in + a.w.dt_bias[h];
  const float soft = x > 20 ? x : log1pf(expf(x));
  const float dt = fminf(fmaxf(soft, a.d.dt_least), a.d.dt_most);
  return {-expf(a.w.a_log[h]) * dt, dt};
}
__device__ __forceinline__ float2 gates_of(const Params& a, float in, int32_t h) {
  const float2 of = log_decay_and_dt(a, in, h);
  return {expf(of.x), of.y};
}
// At token t of the step.
__device__ __forceinline__ float2 decay_and_dt(const Params& a, int64_t t, int32_t h) {
  return gates_of(a, __ldcg(a.in + t * a.d.width + a.d.dt + h), h);
}

// A column of a state lies in the registers of four lanes, its rows in as many runs.
inline constexpr int kRowGroups = 4;  // lanes that share a column
inline constexpr int kWarpColumns = 32 / kRowGroups;
// Rows of a lane, for states of up to so many rows: they settle the order of sums over N.
inline constexpr int kNarrowRows = 8, kNarrowDim = kRowGroups * kNarrowRows;
inline constexpr int kCommonRows = 32, kCommonDim = kRowGroups * kCommonRows;

// Four rows of a column: decay and write, query; each row's part of y by itself.
__device__ __forceinline__ void advance(float* s, float (&y)[4], const float* b, const float* c,
                                        float decay, float value) {
  const float4 by = *reinterpret_cast<const float4*>(b);
  const float4 with = *reinterpret_cast<const float4*>(c);
  s[0] = fmaf(by.x, value, decay * s[0]), s[1] = fmaf(by.y, value, decay * s[1]);
  s[2] = fmaf(by.z, value, decay * s[2]), s[3] = fmaf(by.w, value, decay * s[3]);
  y[0] = fmaf(s[0], with.x, y[0]), y[1] = fmaf(s[1], with.y, y[1]);
  y[2] = fmaf(s[2], with.z, y[2]), y[3] = fmaf(s[3], with.w, y[3]);
}

// One token of a column; y, in each of its lanes.
template <int kRows>
__device__ __forceinline__ float step(float (&s)[kRows], const float* b, const float* c, float x,
                                      float skip, float decay, float dt) {
  const float value = dt * x;
  float y[4] = {};
#pragma unroll
  for (int i = 0; i < kRows; i += 4) advance(s + i, y, b + i, c + i, decay, value);
  float sum = (y[0] + y[1]) + (y[2] + y[3]);
#pragma unroll
  for (int apart = kWarpColumns; apart < 32; apart *= 2)
    sum += __shfl_xor_sync(0xffffffff, sum, apart);
  return fmaf(skip, x, sum);
}

// A warp: y of head h at token t of the step, gated in its place; the sum of squares, in every
// lane.
__device__ __forceinline__ float gate(const Params& a, int64_t t, int32_t h, float* y) {
  const float* const z = a.in + t * a.d.width + h * a.d.head_dim;
  float squares = 0;
  for (int j = threadIdx.x % 32; j < a.d.head_dim; j += 32) {
    const float gated = y[j] * silu(__ldcg(z + j));
    y[j] = gated;
    squares = fmaf(gated, gated, squares);
  }
  return warp_sum(squares);
}

// The factor of a group's norm from the sums of its heads, added in their order.
template <typename SumOf>
__device__ __forceinline__ float norm_factor(const Params& a, const SumOf& sum_of) {
  float squares = 0;
  for (int i = 0; i < a.d.group_heads; ++i) squares += sum_of(i);
  return rsqrtf(squares / static_cast<float>(a.d.group_heads * a.d.head_dim) + a.w.eps);
}

// A warp: att of head h at token t.
__device__ __forceinline__ void store_normed(const Params& a, int64_t t, int32_t h, const float* y,
                                             float factor) {
  const int32_t first = h * a.d.head_dim;
  for (int j = threadIdx.x % 32; j < a.d.head_dim; j += 32)
    a.att[t * a.d.inner + first + j] = cuda::bf16_bits(a.w.norm[first + j] * y[j] * factor);
}

// Launches the recurrence of spans of up to `most_tokens` tokens, whose inputs are in a.mixed and
// a.decayed.
void recur_spans(Ctx& cx, const Params& a, int32_t most_tokens);

}  // namespace nibble::ops::gpu::mamba
