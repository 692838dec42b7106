// mamba2 of any heads (cuda_any): inputs convolved, the recurrence, gate and norm, in a launch
// each. State and sums are float32.
//   in [T, 2 NH P + 2 G N + NH] f32, in                          att [T, NH P] bf16, out
//   state [slots, NH, N, P], conv [slots, taps - 1, channels] f32, in and out by slot
// Needs N <= 256, taps <= 8, NH <= 256 G.
//
// As in delta_rule the columns of a state never meet: a warp has 8 of them in registers from a
// sequence's first token to its last, four lanes share the rows of one. So the state crosses memory
// once in and once out, 8 NH N P bytes a sequence (4.2 MB a layer of Nemotron-3-Nano-30B: 0.9 us of
// an H200's 4.55 TB/s), and a token of a prompt does not wait for the sum over N of the one before.
#include "cuda/async_copy.cuh"
#include "cuda/launch.cuh"
#include "ops/mamba2/mamba2.cuh"
#include "ops/norm_qkv/store_qkv.cuh"
#include "ops/scratch.h"

namespace nibble::ops::gpu {
namespace {

using namespace mamba;

// Grid (T, tiles of channels).
constexpr int kPrepareThreads = 256, kTile = 4 * kPrepareThreads;
__global__ void __launch_bounds__(kPrepareThreads) prepare(const __grid_constant__ Params a) {
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const auto t = static_cast<int32_t>(blockIdx.x);
  const Span span = span_of_token(a.spans, a.num_spans, a.num_tokens, t);
  const int32_t from = a.from[span.slot], first = static_cast<int32_t>(blockIdx.y) * kTile;
  float* const mixed = a.mixed + int64_t{t} * a.d.channels;
  for (int c = first + static_cast<int>(threadIdx.x); c < min(first + kTile, a.d.channels);
       c += kPrepareThreads)
    mixed[c] = convolve(a, span, from, t - span.q_start, c, true);
  if (first > 0) return;
  for (int h = threadIdx.x; h < a.d.heads; h += kPrepareThreads)
    reinterpret_cast<float2*>(a.decayed)[int64_t{t} * a.d.heads + h] = decay_and_dt(a, t, h);
}

constexpr int kWarps = 4, kThreads = kWarps * 32, kColumns = kWarps * kWarpColumns;

// Tokens brought at a time.
template <int kRows>  // of the state, a lane
struct Stage {
  static constexpr int kTokens = kRows > 32 ? 8 : 16;
  float b[kTokens][kRowGroups * kRows], c[kTokens][kRowGroups * kRows];
  float x[kTokens][kColumns];
  float gates[kTokens][2];
};

// Asks for up to kTokens tokens of a span from `first` on.
template <int kRows>
__device__ __forceinline__ void bring(Stage<kRows>& to, const Params& a, const Span& span,
                                      int32_t first, int32_t h, int column) {
  const int32_t g = h / a.d.group_heads;
  const int tokens = min(Stage<kRows>::kTokens, span.q_len - first);
  for (int j = 0; j < tokens; ++j) {
    const int64_t t = span.q_start + first + j;
    const float* const row = a.mixed + t * a.d.channels;
    for (int i = threadIdx.x; i < a.d.state_dim; i += kThreads) {
      cuda::async_copy_4(&to.b[j][i], row + a.d.b + g * a.d.state_dim + i);
      cuda::async_copy_4(&to.c[j][i], row + a.d.c + g * a.d.state_dim + i);
    }
    if (threadIdx.x < kColumns && column + static_cast<int>(threadIdx.x) < a.d.head_dim)
      cuda::async_copy_4(&to.x[j][threadIdx.x], row + h * a.d.head_dim + column + threadIdx.x);
    if (threadIdx.x >= kColumns && threadIdx.x < kColumns + 2)
      cuda::async_copy_4(&to.gates[j][threadIdx.x - kColumns],
                         a.decayed + (t * a.d.heads + h) * 2 + threadIdx.x - kColumns);
  }
  cuda::async_copy_commit();
}

// Grid (NH * tiles of columns, S): spans of up to `most_tokens` tokens.
template <int kRows>
__global__ void __launch_bounds__(kThreads)
    recur(const __grid_constant__ Params a, int tiles, int32_t most_tokens) {
  constexpr int kStage = Stage<kRows>::kTokens;
  __shared__ __align__(16) Stage<kRows> stages[2];
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const Span span = a.spans[blockIdx.y];
  if (span.q_len > most_tokens) return;
  const auto h = static_cast<int32_t>(blockIdx.x / tiles);
  const int first_column = static_cast<int>(blockIdx.x % tiles) * kColumns;
  const int lane = threadIdx.x % 32, group = lane / kWarpColumns;
  const int in_tile = static_cast<int>(threadIdx.x) / 32 * kWarpColumns + lane % kWarpColumns;
  const int column = first_column + in_tile;
  const int rows = a.d.state_dim, dim = a.d.head_dim;
  if (rows < kRowGroups * kRows) {  // those behind the last stay zero
    for (Stage<kRows>& stage : stages)
      for (int i = threadIdx.x; i < static_cast<int>(sizeof(stage) / 4); i += kThreads)
        reinterpret_cast<float*>(&stage)[i] = 0;
    __syncthreads();
  }
  bring(stages[0], a, span, 0, h, first_column);

  const int32_t from = a.from[span.slot];
  const int64_t size = int64_t{rows} * a.d.inner, head = int64_t{h} * rows * dim + column;
  const float skip = a.w.d[h];
  float s[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = group * kRows + i;
    const bool is_there = from != RecurrentLayer::kNoState && row < rows && column < dim;
    s[i] = is_there ? __ldcg(a.state + from * size + head + int64_t{row} * dim) : 0;
  }
  for (int32_t first = 0, turn = 0; first < span.q_len; first += kStage, turn ^= 1) {
    cuda::async_copy_wait<0>();
    __syncthreads();
    if (first + kStage < span.q_len)
      bring(stages[turn ^ 1], a, span, first + kStage, h, first_column);
    const Stage<kRows>& now = stages[turn];
    const int tokens = min(Stage<kRows>::kTokens, span.q_len - first);
#pragma unroll 2  // one's sum over its lanes beside the next one's terms
    for (int j = 0; j < tokens; ++j) {
      const float y = step<kRows>(s, now.b[j] + group * kRows, now.c[j] + group * kRows,
                                  now.x[j][in_tile], skip, now.gates[j][0], now.gates[j][1]);
      if (group == 0 && column < dim)
        a.mixed[(span.q_start + first + j) * int64_t{a.d.channels} + h * dim + column] = y;
    }
  }
  float* const left = a.state + a.to[span.slot] * size + head;
#pragma unroll
  for (int i = 0; i < kRows; ++i)
    if (group * kRows + i < rows && column < dim) left[int64_t{group * kRows + i} * dim] = s[i];
}

// Grid (T, G): a warp a head.
constexpr int kNormWarps = 8;
__global__ void __launch_bounds__(kNormWarps * 32) norm_groups(const __grid_constant__ Params a) {
  __shared__ float sums[kMostGroupHeads];
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int64_t t = blockIdx.x;
  const int32_t first = static_cast<int32_t>(blockIdx.y) * a.d.group_heads;
  const int warp = threadIdx.x / 32;
  float* const mixed = a.mixed + t * a.d.channels;
  for (int i = warp; i < a.d.group_heads; i += kNormWarps) {
    const float squares = gate(a, t, first + i, mixed + (first + i) * a.d.head_dim);
    if (threadIdx.x % 32 == 0) sums[i] = squares;
  }
  __syncthreads();
  const float factor = norm_factor(a, [](int i) { return sums[i]; });
  for (int i = warp; i < a.d.group_heads; i += kNormWarps)
    store_normed(a, t, first + i, mixed + (first + i) * a.d.head_dim, factor);
}

}  // namespace

void mamba::recur_spans(Ctx& cx, const Params& a, int32_t most_tokens) {
  const auto tiles = (a.d.head_dim + kColumns - 1) / kColumns;
  const auto kernel = a.d.state_dim <= kNarrowDim   ? recur<kNarrowRows>
                      : a.d.state_dim <= kCommonDim ? recur<kCommonRows>
                                                    : recur<kMostStateDim / kRowGroups>;
  cuda::launch(
      cx.stream, kernel,
      {.grid = dim3(static_cast<unsigned>(a.d.heads * tiles), static_cast<unsigned>(a.num_spans)),
       .block = dim3(kThreads),
       .release = cuda::Release::kAfterWait},
      a, tiles, most_tokens);
}

void mamba2_any(Ctx& cx, const Tensor& att, const RecurrentLayer& state, const Tensor& in,
                const Mamba2Desc& desc, const Mamba2Weights& weights, const Step& s) {
  if (s.num_tokens == 0) return;
  Scratch scratch(cx.scratch);
  Params a = params_of(att, state, in, desc, weights, s);
  a.mixed = scratch.take<float>(s.num_tokens * desc.channels());
  a.decayed = scratch.take<float>(s.num_tokens * 2 * desc.heads);
  constexpr auto kRelease = cuda::Release::kAfterWait;
  const auto tokens = static_cast<unsigned>(s.num_tokens);
  cuda::launch(cx.stream, prepare,
               {.grid = dim3(tokens, static_cast<unsigned>((desc.channels() + kTile - 1) / kTile)),
                .block = dim3(kPrepareThreads),
                .release = kRelease},
               a);
  recur_spans(cx, a, s.num_tokens);
  cuda::launch(cx.stream, norm_groups,
               {.grid = dim3(tokens, static_cast<unsigned>(desc.groups)),
                .block = dim3(kNormWarps * 32),
                .release = kRelease},
               a);
}

}  // namespace nibble::ops::gpu
