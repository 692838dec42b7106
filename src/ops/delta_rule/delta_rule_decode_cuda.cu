// delta_rule for few tokens of each sequence, in one launch: a block has a value head of a
// sequence, its state in registers from the start, while inputs are convolved and normed; o goes
// through shared memory to the gated norm. q and k are made once a value head.
//   as delta_rule_any_cuda.cu, whose bits these are
// Needs DK <= 128, DV <= 128. Bytes: 8 HV DK DV a sequence: Qwen3-Next-80B 4.2 MB a layer, 0.9 us
// of an H200's 4.55 TB/s, 18 us of a GB10's 233 GB/s.
#include "cuda/launch.cuh"
#include "ops/delta_rule/delta_rule.cuh"

namespace nibble::ops::gpu {
namespace {

using namespace delta;

constexpr int kWarps = 16, kThreads = kWarps * 32, kMostDim = kWarps * kWarpColumns;
constexpr int kTokens = 8;  // at a time

struct Shared {
  alignas(16) float k[kTokens][kMostDim];
  alignas(16) float q[kTokens][kMostDim];
  float v[kTokens][kMostDim];  // o comes in its place
  float2 gates[kTokens];       // decay, beta
};

// q, k and v of up to kTokens tokens from `first` on. The last token's inputs are kept by the first
// value head of a key head, values by their own.
__device__ __forceinline__ void prepare(Shared& to, const Params& a, const Span& span, int32_t from,
                                        int32_t first, int tokens, int32_t h) {
  const int key_dim = a.d.key_dim, dim = a.d.value_dim, all = 2 * key_dim + dim;
  const int32_t g = h / a.d.ratio, of = h % a.d.ratio;
#pragma unroll 1
  for (int j = 0; j < tokens; ++j)
#pragma unroll 1
    for (int c = threadIdx.x; c < all; c += kThreads) {
      if (c >= 2 * key_dim) {
        const int64_t at = place(g, a.d.first.v, a.d.step.v) + of * dim + c - 2 * key_dim;
        to.v[j][c - 2 * key_dim] = convolve(
            a, span, from, first + j, 2 * a.d.key_width + h * dim + c - 2 * key_dim, at, true);
      } else {
        const bool is_k = c >= key_dim;
        const int column = is_k ? c - key_dim : c;
        const int64_t at =
            is_k ? place(g, a.d.first.k, a.d.step.k) : place(g, a.d.first.q, a.d.step.q);
        const float x =
            convolve(a, span, from, first + j, (is_k ? a.d.key_width : 0) + g * key_dim + column,
                     at + column, of == 0);
        (is_k ? to.k : to.q)[j][column] = x;
      }
    }
  if (threadIdx.x < tokens)
    to.gates[threadIdx.x] = decay_and_beta(a, span.q_start + first + threadIdx.x, h);
  __syncthreads();
  const int warp = threadIdx.x / 32, j = warp / 2;
  static_assert(kWarps == 2 * kTokens);
  if (j < tokens) {
    float* const x = warp % 2 == 0 ? to.q[j] : to.k[j];
    l2_norm(x, x, key_dim, warp % 2 == 0 ? rsqrtf(static_cast<float>(key_dim)) : 1);
  }
  __syncthreads();
}

// Grid (HV, S). Spans of more than `most` tokens are another kernel's.
template <int kRows>
__global__ void __launch_bounds__(kThreads, 1) decode(const __grid_constant__ Params a, int most) {
  __shared__ Shared shared;
  for (int i = threadIdx.x; i < static_cast<int>(2 * kTokens * kMostDim); i += kThreads)
    (&shared.k[0][0])[i] = 0;  // rows behind the last stay zero
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const Span span = a.spans[blockIdx.y];
  if (span.q_len > most) return;
  const auto h = static_cast<int32_t>(blockIdx.x);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / kWarpColumns;
  const int column = warp * kWarpColumns + lane % kWarpColumns;
  const int key_dim = a.d.key_dim, dim = a.d.value_dim;
  const int32_t from = a.from[span.slot];
  const int64_t size = int64_t{key_dim} * a.d.value_width,
                head = int64_t{h} * key_dim * dim + column;
  float s[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = group * kRows + i;
    const bool is_there = from != RecurrentLayer::kNoState && row < key_dim && column < dim;
    s[i] = is_there ? __ldcg(a.state + from * size + head + int64_t{row} * dim) : 0;
  }
  for (int32_t first = 0; first < span.q_len; first += kTokens) {
    const int tokens = min(kTokens, span.q_len - first);
    __syncthreads();  // zeros are there, and what the norm read is no longer needed
    prepare(shared, a, span, from, first, tokens, h);
    for (int j = 0; j < tokens; ++j) {
      const float o = step<kRows>(s, shared.k[j] + group * kRows, shared.q[j] + group * kRows,
                                  shared.v[j][column], shared.gates[j].x, shared.gates[j].y);
      __syncwarp();
      if (group == 0) shared.v[j][column] = o;
    }
    __syncthreads();
    if (warp < tokens) norm_gated(a, span.q_start + first + warp, h, shared.v[warp]);
  }
  float* const left = a.state + a.to[span.slot] * size + head;
#pragma unroll
  for (int i = 0; i < kRows; ++i)
    if (group * kRows + i < key_dim && column < dim) left[int64_t{group * kRows + i} * dim] = s[i];
}

}  // namespace

void delta::decode_spans(Ctx& cx, const Params& a, int most) {
  CHECK(a.d.key_dim <= kMostDim && a.d.value_dim <= kMostDim);
  const auto kernel = a.d.key_dim <= kNarrowDim ? decode<kNarrowRows> : decode<kCommonRows>;
  cuda::launch(
      cx.stream, kernel,
      {.grid = dim3(static_cast<unsigned>(a.d.value_heads), static_cast<unsigned>(a.num_spans)),
       .block = dim3(kThreads),
       .release = cuda::Release::kAfterWait},
      a, most);
}

void delta_rule_decode(Ctx& cx, const Tensor& att, const RecurrentLayer& state,
                       const DeltaRuleIn& in, const DeltaRuleDesc& desc,
                       const DeltaRuleWeights& weights, const Step& s) {
  if (s.num_tokens == 0) return;
  decode_spans(cx, params_of(att, state, in, desc, weights, s), INT32_MAX);
}

}  // namespace nibble::ops::gpu
