// mamba2 for few tokens of each sequence, in one launch: a block has a head of a sequence, its
// state in registers from the start, while inputs are convolved; a cluster of blocks has a group,
// whose norm needs the sums of all its heads. B and C are made once a head.
//   as mamba2_any_cuda.cu, whose bits these are
// Needs N <= 128, P <= 128, NH <= 8 G. Bytes: 8 NH N P a sequence: Nemotron-3-Nano-30B 4.2 MB a
// layer, 0.9 us of an H200's 4.55 TB/s, 18 us of a GB10's 233 GB/s.
#include <cooperative_groups.h>

#include "cuda/launch.cuh"
#include "ops/mamba2/mamba2.cuh"

namespace nibble::ops::gpu {
namespace {

using namespace mamba;

constexpr int kMostDim = 128, kTokens = 8;  // at a time

template <int kColumns>
struct Shared {
  alignas(16) float b[kTokens][kMostDim];
  alignas(16) float c[kTokens][kMostDim];
  float x[kTokens][kColumns];  // y comes in its place
  float2 gates[kTokens];       // decay, dt
  float sums[kTokens];         // of y^2
};

// Inputs of up to kTokens tokens from `first` on. The last token's B and C are kept by the first
// head of a group, x by its own.
template <int kThreads, int kColumns>
__device__ __forceinline__ void prepare(Shared<kColumns>& to, const Params& a, const Span& span,
                                        int32_t from, int32_t first, int tokens, int32_t h) {
  const int rows = a.d.state_dim, dim = a.d.head_dim;
  const int32_t g = h / a.d.group_heads;
  const bool is_first = h % a.d.group_heads == 0;
#pragma unroll 1
  for (int j = 0; j < tokens; ++j)
#pragma unroll 1
    for (int i = threadIdx.x; i < 2 * rows + dim; i += kThreads) {
      const int of_c = i - rows, of_x = of_c - rows;
      if (of_x >= 0)
        to.x[j][of_x] = convolve(a, span, from, first + j, h * dim + of_x, true);
      else if (of_c >= 0)
        to.c[j][of_c] = convolve(a, span, from, first + j, a.d.c + g * rows + of_c, is_first);
      else
        to.b[j][i] = convolve(a, span, from, first + j, a.d.b + g * rows + i, is_first);
    }
  if (threadIdx.x < tokens)
    to.gates[threadIdx.x] = decay_and_dt(a, span.q_start + first + threadIdx.x, h);
  __syncthreads();
}

// Grid (NH, S), in clusters of a group's heads. kWarps * kWarpColumns >= P.
template <int kRows, int kWarps>
__global__ void __launch_bounds__(kWarps * 32, 1) decode(const __grid_constant__ Params a) {
  constexpr int kThreads = kWarps * 32, kColumns = kWarps * kWarpColumns;
  __shared__ Shared<kColumns> shared;
  const auto cluster = cooperative_groups::this_cluster();
  for (int i = threadIdx.x; i < 2 * kTokens * kMostDim; i += kThreads)
    (&shared.b[0][0])[i] = 0;  // rows behind the last stay zero
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const Span span = a.spans[blockIdx.y];
  const auto h = static_cast<int32_t>(blockIdx.x);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / kWarpColumns;
  const int column = warp * kWarpColumns + lane % kWarpColumns;
  const int rows = a.d.state_dim, dim = a.d.head_dim;
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
  for (int32_t first = 0; first < span.q_len; first += kTokens) {
    const int tokens = min(kTokens, span.q_len - first);
    cluster.sync();  // zeros are there, and what the norm read is no longer needed
    prepare<kThreads>(shared, a, span, from, first, tokens, h);
    for (int j = 0; j < tokens; ++j) {
      const float y = step<kRows>(s, shared.b[j] + group * kRows, shared.c[j] + group * kRows,
                                  shared.x[j][column], skip, shared.gates[j].x, shared.gates[j].y);
      __syncwarp();
      if (group == 0) shared.x[j][column] = y;
    }
    __syncthreads();
    for (int j = warp; j < tokens; j += kWarps) {
      const float squares = gate(a, span.q_start + first + j, h, shared.x[j]);
      if (lane == 0) shared.sums[j] = squares;
    }
    cluster.sync();
    for (int j = warp; j < tokens; j += kWarps) {
      const float factor =
          norm_factor(a, [&](int i) { return *cluster.map_shared_rank(&shared.sums[j], i); });
      store_normed(a, span.q_start + first + j, h, shared.x[j], factor);
    }
  }
  float* const left = a.state + a.to[span.slot] * size + head;
#pragma unroll
  for (int i = 0; i < kRows; ++i)
    if (group * kRows + i < rows && column < dim) left[int64_t{group * kRows + i} * dim] = s[i];
  cluster.sync();  // nobody's sums go before all have read them
}

template <int kWarps>
void launch(Ctx& cx, const Params& a) {
  const auto kernel =
      a.d.state_dim <= kNarrowDim ? decode<kNarrowRows, kWarps> : decode<kCommonRows, kWarps>;
  cuda::launch(cx.stream, kernel,
               {.grid = dim3(static_cast<unsigned>(a.d.heads), static_cast<unsigned>(a.num_spans)),
                .block = dim3(kWarps * 32),
                .cluster = static_cast<unsigned>(a.d.group_heads),
                .release = cuda::Release::kAfterWait},
               a);
}

}  // namespace

void mamba2_decode(Ctx& cx, const Tensor& att, const RecurrentLayer& state, const Tensor& in,
                   const Mamba2Desc& desc, const Mamba2Weights& weights, const Step& s) {
  if (s.num_tokens == 0) return;
  const Params a = params_of(att, state, in, desc, weights, s);
  CHECK(desc.state_dim <= kMostDim && desc.head_dim <= kMostDim && desc.group_heads() <= 8);
  if (desc.head_dim <= 8 * kWarpColumns)
    launch<8>(cx, a);
  else
    launch<16>(cx, a);
}

}  // namespace nibble::ops::gpu
