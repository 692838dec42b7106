// delta_rule of any heads (cuda_any): inputs convolved and normed, the recurrence, the gated norm,
// in a launch each. State and sums are float32.
//   qkvz [T, 2 HK DK + 2 HV DV], gates [T, 2 HV] f32, in          att [T, HV DV] bf16, out
//   state [slots, HV, DK, DV], conv [slots, taps - 1, channels] f32, in and out by slot
// Needs DK <= 256, taps <= 8.
//
// The columns of a state never meet: a warp has 8 of them in registers from a sequence's first
// token to its last, four lanes share the rows of one. So the state crosses memory once in and once
// out, 8 HV DK DV bytes a sequence (4.2 MB a layer of Qwen3-Next-80B: 0.9 us of an H200's 4.55
// TB/s), and one token of a prompt follows the other after two sums over DK. One order of sums
// whatever the step holds: a token's bits depend on its text alone.
#include "cuda/async_copy.cuh"
#include "cuda/bf16.cuh"
#include "cuda/launch.cuh"
#include "ops/delta_rule/delta_rule.cuh"
#include "ops/norm_qkv/store_qkv.cuh"
#include "ops/scratch.h"

namespace nibble::ops::gpu {
namespace {

using namespace delta;

// Grid (T, HK).
constexpr int kPrepareThreads = 256;
__global__ void __launch_bounds__(kPrepareThreads) prepare(const __grid_constant__ Params a) {
  __shared__ float qk[2 * kMostKeyDim];
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const auto t = static_cast<int32_t>(blockIdx.x);
  const int64_t g = blockIdx.y;
  const int ratio = a.d.ratio;
  const Span span = span_of_token(a.spans, a.num_spans, a.num_tokens, t);
  const int32_t from = a.from[span.slot], at = t - span.q_start;
  const int key_dim = a.d.key_dim;
  const int values = ratio * a.d.value_dim;
  float* const mixed = a.mixed + int64_t{t} * a.d.channels;
  for (int i = threadIdx.x; i < 2 * key_dim + values; i += kPrepareThreads) {
    if (i >= 2 * key_dim) {
      const int64_t channel = 2 * a.d.key_width + g * values + i - 2 * key_dim;
      mixed[channel] = convolve(a, span, from, at, channel,
                                place(g, a.d.first.v, a.d.step.v) + i - 2 * key_dim, true);
    } else {
      const bool is_k = i >= key_dim;
      const int of = is_k ? i - key_dim : i;
      qk[i] = convolve(
          a, span, from, at, (is_k ? a.d.key_width : 0) + g * key_dim + of,
          (is_k ? place(g, a.d.first.k, a.d.step.k) : place(g, a.d.first.q, a.d.step.q)) + of,
          true);
    }
  }
  __syncthreads();
  const int warp = threadIdx.x / 32;
  if (warp == 0) l2_norm(mixed + g * key_dim, qk, key_dim, rsqrtf(static_cast<float>(key_dim)));
  if (warp == 1) l2_norm(mixed + a.d.key_width + g * key_dim, qk + key_dim, key_dim, 1);
  const int of = static_cast<int>(threadIdx.x) - 64;
  if (of < 0 || of >= ratio) return;
  const auto h = static_cast<int32_t>(g * ratio + of);
  const float2 both = decay_and_beta(log_decay_and_beta(a, t, h));
  float* const to = a.decayed + (int64_t{t} * a.d.value_heads + h) * 2;
  to[0] = both.x, to[1] = both.y;
}

constexpr int kWarps = 4, kThreads = kWarps * 32, kColumns = kWarps * kWarpColumns;

// Tokens brought at a time.
template <int kRows>  // of the state, a lane
struct Stage {
  static constexpr int kTokens = kRows > 32 ? 8 : 16;
  float k[kTokens][kRowGroups * kRows], q[kTokens][kRowGroups * kRows];
  float v[kTokens][kColumns];
  float gates[kTokens][2];
};

// Asks for up to kTokens tokens of a span from `first` on.
template <int kRows>
__device__ __forceinline__ void bring(Stage<kRows>& to, const Params& a, const Span& span,
                                      int32_t first, int32_t h, int column) {
  const int key_dim = a.d.key_dim;
  const int32_t g = h / a.d.ratio;
  const int tokens = min(Stage<kRows>::kTokens, span.q_len - first);
  for (int j = 0; j < tokens; ++j) {
    const int64_t t = span.q_start + first + j;
    const float* const row = a.mixed + t * a.d.channels;
    for (int i = threadIdx.x; i < key_dim; i += kThreads) {
      cuda::async_copy_4(&to.q[j][i], row + g * key_dim + i);
      cuda::async_copy_4(&to.k[j][i], row + a.d.key_width + g * key_dim + i);
    }
    if (threadIdx.x < kColumns && column + static_cast<int>(threadIdx.x) < a.d.value_dim)
      cuda::async_copy_4(&to.v[j][threadIdx.x],
                         row + 2 * a.d.key_width + h * a.d.value_dim + column + threadIdx.x);
    if (threadIdx.x >= kColumns && threadIdx.x < kColumns + 2)
      cuda::async_copy_4(&to.gates[j][threadIdx.x - kColumns],
                         a.decayed + (t * a.d.value_heads + h) * 2 + threadIdx.x - kColumns);
  }
  cuda::async_copy_commit();
}

// Grid (HV * tiles of columns, S).
template <int kRows>
__global__ void __launch_bounds__(kThreads) recur(const __grid_constant__ Params a, int tiles) {
  constexpr int kStage = Stage<kRows>::kTokens;
  __shared__ __align__(16) Stage<kRows> stages[2];
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const Span span = a.spans[blockIdx.y];
  const auto h = static_cast<int32_t>(blockIdx.x / tiles);
  const int first_column = static_cast<int>(blockIdx.x % tiles) * kColumns;
  const int lane = threadIdx.x % 32, group = lane / kWarpColumns;
  const int in_tile = static_cast<int>(threadIdx.x) / 32 * kWarpColumns + lane % kWarpColumns;
  const int column = first_column + in_tile;
  const int key_dim = a.d.key_dim, dim = a.d.value_dim;
  for (Stage<kRows>& stage : stages)  // rows behind the last stay zero
    for (int i = threadIdx.x; i < static_cast<int>(sizeof(stage) / 4); i += kThreads)
      reinterpret_cast<float*>(&stage)[i] = 0;
  __syncthreads();
  bring(stages[0], a, span, 0, h, first_column);

  const int32_t from = a.from[span.slot];
  const int64_t size = int64_t{a.d.key_dim} * a.d.value_width,
                head = h * a.d.key_dim * dim + column;
  float s[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = group * kRows + i;
    const bool is_there = from != RecurrentLayer::kNoState && row < key_dim && column < dim;
    s[i] = is_there ? __ldcg(a.state + from * size + head + int64_t{row} * dim) : 0;
  }
  for (int32_t first = 0, turn = 0; first < span.q_len; first += kStage, turn ^= 1) {
    cuda::async_copy_wait<0>();
    __syncthreads();
    if (first + kStage < span.q_len)
      bring(stages[turn ^ 1], a, span, first + kStage, h, first_column);
    const Stage<kRows>& now = stages[turn];
    const int tokens = min(Stage<kRows>::kTokens, span.q_len - first);
    for (int j = 0; j < tokens; ++j) {
      const float o = step<kRows>(s, now.k[j] + group * kRows, now.q[j] + group * kRows,
                                  now.v[j][in_tile], now.gates[j][0], now.gates[j][1]);
      if (group == 0 && column < dim)
        a.mixed[(span.q_start + first + j) * a.d.channels + 2 * a.d.key_width + h * dim + column] =
            o;
    }
  }
  float* const left = a.state + a.to[span.slot] * size + head;
#pragma unroll
  for (int i = 0; i < kRows; ++i)
    if (group * kRows + i < key_dim && column < dim) left[int64_t{group * kRows + i} * dim] = s[i];
}

// A warp a token and value head.
constexpr int kNormWarpsOfBlock = 8;
__global__ void __launch_bounds__(kNormWarpsOfBlock * 32)
    norm_tokens(const __grid_constant__ Params a) {
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const auto i = static_cast<int32_t>(blockIdx.x * kNormWarpsOfBlock + threadIdx.x / 32);
  const int32_t h = i % a.d.value_heads;
  const int64_t t = i / a.d.value_heads;
  if (t >= a.num_tokens) return;
  norm_gated(a, t, h, a.mixed + t * a.d.channels + 2 * a.d.key_width + h * a.d.value_dim);
}

}  // namespace

void delta_rule_any(Ctx& cx, const Tensor& att, const RecurrentLayer& state, const DeltaRuleIn& in,
                    const DeltaRuleDesc& desc, const DeltaRuleWeights& weights, const Step& s) {
  if (s.num_tokens == 0) return;
  Scratch scratch(cx.scratch);
  Params a = params_of(att, state, in, desc, weights, s);
  a.mixed = scratch.take<float>(s.num_tokens * desc.channels());
  a.decayed = scratch.take<float>(s.num_tokens * 2 * desc.value_heads);
  CHECK(desc.key_dim <= kMostKeyDim && desc.taps <= kMostTaps);
  constexpr auto kRelease = cuda::Release::kAfterWait;
  cuda::launch(
      cx.stream, prepare,
      {.grid = dim3(static_cast<unsigned>(s.num_tokens), static_cast<unsigned>(desc.key_heads)),
       .block = dim3(kPrepareThreads),
       .release = kRelease},
      a);
  const auto tiles = static_cast<int>((desc.value_dim + kColumns - 1) / kColumns);
  const auto kernel = desc.key_dim <= kNarrowDim   ? recur<kNarrowRows>
                      : desc.key_dim <= kCommonDim ? recur<kCommonRows>
                                                   : recur<kMostKeyDim / kRowGroups>;
  cuda::launch(cx.stream, kernel,
               {.grid = dim3(static_cast<unsigned>(desc.value_heads * tiles),
                             static_cast<unsigned>(s.num_spans)),
                .block = dim3(kThreads),
                .release = kRelease},
               a, tiles);
  const int64_t heads = int64_t{s.num_tokens} * desc.value_heads;
  cuda::launch(
      cx.stream, norm_tokens,
      {.grid = dim3(static_cast<unsigned>((heads + kNormWarpsOfBlock - 1) / kNormWarpsOfBlock)),
       .block = dim3(kNormWarpsOfBlock * 32),
       .release = kRelease},
      a);
}

}  // namespace nibble::ops::gpu
