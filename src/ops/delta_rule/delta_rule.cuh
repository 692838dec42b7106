// Device code of delta_rule that its CUDA rows share. One order of every sum in the rows that go
// token by token: a token's bits do not tell which of them ran.
#pragma once

#include "base/check.h"
#include "cuda/bf16.cuh"
#include "ops/delta_rule/delta_rule.h"
#include "ops/norm/add_norm.cuh"

namespace nibble::ops::gpu::delta {

inline constexpr int kMostTaps = 8, kMostKeyDim = 256;

// Of DeltaRuleDesc; places of key head g are first + g * step.
struct Dims {
  int32_t value_heads, ratio, key_dim, value_dim, taps;
  int32_t key_width, value_width, channels, width;
  DeltaPlaces first, step;
};
inline Dims dims_of(const DeltaRuleDesc& d) {
  const DeltaPlaces first = delta_places(d, 0), second = delta_places(d, 1);
  return {.value_heads = static_cast<int32_t>(d.value_heads),
          .ratio = static_cast<int32_t>(d.value_heads / d.key_heads),
          .key_dim = static_cast<int32_t>(d.key_dim),
          .value_dim = static_cast<int32_t>(d.value_dim),
          .taps = static_cast<int32_t>(d.taps),
          .key_width = static_cast<int32_t>(d.key_width()),
          .value_width = static_cast<int32_t>(d.value_width()),
          .channels = static_cast<int32_t>(d.channels()),
          .width = static_cast<int32_t>(d.width()),
          .first = first,
          .step = {second.q - first.q, second.k - first.k, second.v - first.v, second.z - first.z,
                   second.b - first.b, second.a - first.a}};
}

struct Params {
  Dims d;
  DeltaRuleWeights w;
  const float* qkvz;
  DeltaGates gates;
  uint16_t* att;
  float* state;
  float* conv;
  const int32_t* from;
  const int32_t* to;
  const Span* spans;
  int32_t num_spans, num_tokens;
  // Of rows in several launches.
  float* mixed = nullptr;    // [T, channels]: q, k normed, and v, in whose place o comes
  float* decayed = nullptr;  // [T, HV, 2]: decay, beta
};
// The spans of up to `most` tokens, in one launch (delta_rule_decode_cuda.cu). Of the heads that it
// is for.
void decode_spans(Ctx& cx, const Params& a, int most, bool waits_last = false);
// The spans of a step of up to so many tokens (delta_rule_clusters_cuda.cu). Likewise.
inline constexpr int kClusterTokens = 8;
void step_by_clusters(Ctx& cx, const Params& a, bool waits_last);
// Whether all spans of a step are that short, as far as counts tell: the next token of each
// sequence, or drafts that are verified.
inline bool is_decode(const Step& s) {
  const bool is_few = s.num_tokens <= 8 * s.num_spans && s.num_tokens - s.num_spans < kDeltaChunk;
  return is_few || s.num_tokens <= kDeltaFewTokens || s.num_tokens == s.num_spans;
}

inline Params params_of(const Tensor& att, const RecurrentLayer& state, const DeltaRuleIn& in,
                        const DeltaRuleDesc& desc, const DeltaRuleWeights& weights, const Step& s) {
  CHECK(desc.key_dim <= kMostKeyDim && desc.taps <= kMostTaps);
  return {.d = dims_of(desc),
          .w = weights,
          .qkvz = in.qkvz.as<float>(),
          .gates = gates_of(in, desc),
          .att = att.as<uint16_t>(),
          .state = state.state.as<float>(),
          .conv = state.conv.as<float>(),
          .from = state.from,
          .to = state.to,
          .spans = s.spans,
          .num_spans = s.num_spans,
          .num_tokens = s.num_tokens};
}

__device__ __forceinline__ int64_t place(int64_t g, int64_t first, int64_t step) {
  return first + g * step;
}
// The first channel of q, k or v (part 0, 1 or 2) of a value head.
__device__ __forceinline__ int32_t channel_of(const Params& a, int part, int32_t h) {
  if (part == 2) return 2 * a.d.key_width + h * a.d.value_dim;
  return part * a.d.key_width + h / a.d.ratio * a.d.key_dim;
}
__device__ __forceinline__ float silu(float x) { return x / (1 + __expf(-x)); }

// A channel's input at token t of a span, which may lie before the step.
__device__ __forceinline__ float input_at(const Params& a, const Span& span, int32_t from,
                                          int32_t t, int64_t channel, int64_t place) {
  if (t >= 0) return __ldcg(a.qkvz + int64_t{span.q_start + t} * a.d.width + place);
  if (from == RecurrentLayer::kNoState) return 0;
  const int64_t row = int64_t{from} * (a.d.taps - 1) + a.d.taps - 1 + t;
  return __ldcg(a.conv + row * a.d.channels + channel);
}

// The convolution of one channel; a span's last token keeps its inputs, if `keeps`.
__device__ __forceinline__ float convolve(const Params& a, const Span& span, int32_t from,
                                          int32_t t, int64_t channel, int64_t place, bool keeps) {
  const int taps = a.d.taps;
  const bool is_last = keeps && t + 1 == span.q_len;
  float* const kept = a.conv + int64_t{a.to[span.slot]} * (taps - 1) * a.d.channels + channel;
  float sum = 0;
  constexpr int kAtOnce = 4;  // loads in flight
  for (int first = 0; first < taps; first += kAtOnce) {
    float x[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      x[i] =
          first + i < taps ? input_at(a, span, from, t - taps + 1 + first + i, channel, place) : 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int j = first + i;
      if (j < taps) sum = fmaf(a.w.conv[channel * taps + j], x[i], sum);
      if (is_last && j > 0 && j < taps) kept[(j - 1) * a.d.channels] = x[i];
    }
  }
  return silu(sum);
}

// A warp: n values of `from`, normed, to where `to` is, which may be the same.
__device__ __forceinline__ void l2_norm(float* to, const float* from, int n, float factor) {
  const int lane = threadIdx.x % 32;
  float squares = 0;
  for (int i = lane; i < n; i += 32) squares = fmaf(from[i], from[i], squares);
  const float by = factor / sqrtf(warp_sum(squares) + 1e-6f);
  for (int i = lane; i < n; i += 32) to[i] = from[i] * by;
}

// Of the gates a and b of a token and head: decay's logarithm, and beta.
__device__ __forceinline__ float2 log_decay_and_beta(float a, float b, float a_log, float dt_bias) {
  const float x = a + dt_bias;
  const float dt = x > 20 ? x : log1pf(expf(x));
  return {-expf(a_log) * dt, 1 / (1 + expf(-b))};
}
// Where the gates of value head h at token t of the step lie.
__device__ __forceinline__ const float* gate_a(const Params& a, int64_t t, int32_t h) {
  return a.gates.data + t * a.gates.stride + place(h / a.d.ratio, a.d.first.a, a.d.step.a) +
         h % a.d.ratio;
}
__device__ __forceinline__ const float* gate_b(const Params& a, int64_t t, int32_t h) {
  return a.gates.data + t * a.gates.stride + place(h / a.d.ratio, a.d.first.b, a.d.step.b) +
         h % a.d.ratio;
}
__device__ __forceinline__ float2 log_decay_and_beta(const Params& a, int64_t t, int32_t h) {
  return log_decay_and_beta(__ldcg(gate_a(a, t, h)), __ldcg(gate_b(a, t, h)), a.w.a_log[h],
                            a.w.dt_bias[h]);
}
__device__ __forceinline__ float2 decay_and_beta(float2 log_decay_and_beta) {
  return {expf(log_decay_and_beta.x), log_decay_and_beta.y};
}

// A column of a state lies in the registers of four lanes, its rows in as many runs.
inline constexpr int kRowGroups = 4;  // lanes that share a column
inline constexpr int kWarpColumns = 32 / kRowGroups;
// Rows of a lane, for key heads of up to so many dims: they settle the order of sums over DK.
inline constexpr int kNarrowRows = 8, kNarrowDim = kRowGroups * kNarrowRows;
inline constexpr int kCommonRows = 32, kCommonDim = kRowGroups * kCommonRows;

// The sum over the lanes of a column.
__device__ __forceinline__ float column_sum(float x) {
#pragma unroll
  for (int step = kWarpColumns; step < 32; step *= 2) x += __shfl_xor_sync(0xffffffff, x, step);
  return x;
}

// One token of a column: decay, read, write, query; o, in each of its lanes.
template <int kRows>
__device__ __forceinline__ float step(float (&s)[kRows], const float* k, const float* q, float v,
                                      float decay, float beta) {
  float known[4] = {}, o[4] = {};
#pragma unroll
  for (int i = 0; i < kRows; i += 4) {
    const float4 by = *reinterpret_cast<const float4*>(k + i);
    known[0] = fmaf(s[i], by.x, known[0]), known[1] = fmaf(s[i + 1], by.y, known[1]);
    known[2] = fmaf(s[i + 2], by.z, known[2]), known[3] = fmaf(s[i + 3], by.w, known[3]);
  }
  const float all = column_sum((known[0] + known[1]) + (known[2] + known[3]));
  const float delta = beta * (v - decay * all);
  asm volatile("" ::: "memory");  // k again, rather than in as many registers meanwhile
#pragma unroll
  for (int i = 0; i < kRows; i += 4) {
    const float4 by = *reinterpret_cast<const float4*>(k + i);
    const float4 with = *reinterpret_cast<const float4*>(q + i);
    s[i] = fmaf(by.x, delta, decay * s[i]), s[i + 1] = fmaf(by.y, delta, decay * s[i + 1]);
    s[i + 2] = fmaf(by.z, delta, decay * s[i + 2]), s[i + 3] = fmaf(by.w, delta, decay * s[i + 3]);
    o[0] = fmaf(s[i], with.x, o[0]), o[1] = fmaf(s[i + 1], with.y, o[1]);
    o[2] = fmaf(s[i + 2], with.z, o[2]), o[3] = fmaf(s[i + 3], with.w, o[3]);
  }
  return column_sum((o[0] + o[1]) + (o[2] + o[3]));
}

// A warp: att of value head h at token t of the step, from its o; of(column): weight and z.
template <class Of>
__device__ __forceinline__ void norm_gated(const Params& a, int64_t t, int32_t h, int dim,
                                           const float* o, const Of& of) {
  float squares = 0;
  for (int j = threadIdx.x % 32; j < dim; j += 32) squares = fmaf(o[j], o[j], squares);
  const float inverse = rsqrtf(warp_sum(squares) / static_cast<float>(dim) + a.w.eps);
  for (int j = threadIdx.x % 32; j < dim; j += 32) {
    const float2 with = of(j);
    a.att[t * a.d.value_width + h * dim + j] =
        cuda::bf16_bits(with.x * o[j] * inverse * silu(with.y));
  }
}
__device__ __forceinline__ void norm_gated(const Params& a, int64_t t, int32_t h, const float* o) {
  const int dim = a.d.value_dim;
  const float* const z =
      a.qkvz + t * a.d.width + place(h / a.d.ratio, a.d.first.z, a.d.step.z) + h % a.d.ratio * dim;
  norm_gated(a, t, h, dim, o, [&](int j) { return float2{a.w.norm[j], __ldcg(z + j)}; });
}

}  // namespace nibble::ops::gpu::delta
