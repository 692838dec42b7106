// delta_rule for up to 8 tokens of one or two sequences, drafts that are verified above all, in one
// launch: a cluster of four blocks takes a value head of a sequence, each block 32 columns of its
// state, which stay in registers from the first token to the last. States, last inputs and weights
// come before the wait for the kernel in front. Behind it all tokens are convolved and normed at
// once, a warp a token and part; then four warps take them one after the other and nobody meets in
// between. o of a token goes to the block that norms it.
//   as delta_rule_any_cuda.cu, whose bits these are
// Needs DK = DV = 128, 4 taps.
// Bytes: 8 HV DK DV a sequence: Qwen3-Next-80B 4.2 MB a layer, 0.9 us of an H200's 4.55 TB/s.
// Reached on one H200, 2026-11-28: one token 3.5 us, spans of 2, 3 and 4 tokens 3.8, 4.5 and 5.0,
// two of 4 tokens 6.0 (by delta_rule_decode_cuda.cu 5.6, 8.0, 10.5, 12.7, 12.8). Lost: three
// sequences and more, 96 clusters (docs/lab/delta-net.md).
#include "cuda/async_copy.cuh"
#include "cuda/cluster.cuh"
#include "cuda/launch.cuh"
#include "cuda/mbarrier.cuh"
#include "ops/delta_rule/delta_rule.cuh"

namespace nibble::ops::gpu {
namespace {

using namespace delta;

constexpr int kHead = 128, kTaps = 4, kWindow = kTaps - 1, kPerLane = kHead / 32;
constexpr int kBlocks = 4, kColumns = kHead / kBlocks;  // of a cluster, and of a block
constexpr int kStepWarps = kColumns / kWarpColumns, kWarps = 2 * kStepWarps;
constexpr int kThreads = kWarps * 32;
constexpr int kBlocksOfSm = NIBBLE_CUDA_SM == 121 ? 2 : 3;  // with 3 ptxas spills for sm_121
constexpr int kOwn = kClusterTokens / kBlocks;  // tokens that a block norms: every kBlocks-th
static_assert(kCommonDim == kHead && kCommonRows == 32 && kPerLane == kRowGroups);

// Inputs of a block: q and k of its key head, v of its columns; in pieces of 16 bytes.
constexpr int kWidth = 2 * kHead + kColumns, kPieces = kWidth / 4;

struct alignas(16) Shared {
  float inputs[kWindow + kClusterTokens][kWidth];  // the last ones before the step, and its own
  float q[kClusterTokens][kRowGroups][kCommonRows + 4];  // normed
  float k[kClusterTokens][kRowGroups][kCommonRows + 4];
  float4 conv[kWidth];           // weights
  float2 gates[kClusterTokens];  // decay, beta
  float norm[kHead], z[kOwn][kHead], o[kOwn][kHead];
  uint64_t arrived[kOwn];  // all of o
  int32_t to;              // the slot
};

// A block's place. Divisions once: each is much code.
struct Block {
  Span span;
  int32_t head, key_head, of_key;  // the of_key-th value head of its key head
  int32_t rank;

  __device__ __forceinline__ explicit Block(const Params& a)
      : span(a.spans[blockIdx.y]),
        head(static_cast<int32_t>(blockIdx.x) / kBlocks),
        key_head(head / a.d.ratio),
        of_key(head - key_head * a.d.ratio),
        rank(static_cast<int32_t>(blockIdx.x) % kBlocks) {}

  // Of a slot's state: row 0 of a column of the block.
  __device__ __forceinline__ float* state(const Params& a, int32_t slot, int column) const {
    return a.state + (int64_t{slot} * a.d.value_heads + head) * kHead * kHead + rank * kColumns +
           column;
  }
  // Element i of the block's inputs as a channel, and in a row of `qkvz`.
  __device__ __forceinline__ int32_t channel(const Params& a, int i) const {
    if (i < kHead) return key_head * kHead + i;
    if (i < 2 * kHead) return a.d.key_width + key_head * kHead + i - kHead;
    return 2 * a.d.key_width + head * kHead + rank * kColumns + i - 2 * kHead;
  }
  __device__ __forceinline__ int64_t element(const Params& a, int i) const {
    if (i < kHead) return place(key_head, a.d.first.q, a.d.step.q) + i;
    if (i < 2 * kHead) return place(key_head, a.d.first.k, a.d.step.k) + i - kHead;
    return place(key_head, a.d.first.v, a.d.step.v) + of_key * kHead + rank * kColumns + i -
           2 * kHead;
  }
};

// Asks for weights, and the inputs before the step.
__device__ __forceinline__ void bring_first(Shared& shared, const Params& a, const Block& block,
                                            int32_t from) {
#pragma unroll 1
  for (int i = threadIdx.x; i < kWidth; i += kThreads)
    cuda::async_copy_16(cuda::shared_address(&shared.conv[i]),
                        a.w.conv + block.channel(a, i) * kTaps);
  if (threadIdx.x < kHead / 4)
    cuda::async_copy_16(cuda::shared_address(&shared.norm[threadIdx.x * 4]),
                        a.w.norm + threadIdx.x * 4);
  static_assert(kWindow * kPieces <= kThreads);
  const int row = threadIdx.x / kPieces, i = threadIdx.x % kPieces * 4;
  if (row >= kWindow) return;
  if (from != RecurrentLayer::kNoState)
    cuda::async_copy_16(
        cuda::shared_address(&shared.inputs[row][i]),
        a.conv + (int64_t{from} * kWindow + row) * a.d.channels + block.channel(a, i));
  else
    *reinterpret_cast<float4*>(&shared.inputs[row][i]) = {};
}

// Asks for those of the step, and z of the tokens that the block norms.
__device__ __forceinline__ void bring_inputs(Shared& shared, const Params& a, const Block& block) {
  constexpr int kAll = kPieces + kHead / 4;
#pragma unroll 1
  for (int i = threadIdx.x; i < block.span.q_len * kAll; i += kThreads) {
    const int t = i / kAll, at = i % kAll * 4;
    const float* const row = a.qkvz + int64_t{block.span.q_start + t} * a.d.width;
    if (at < kWidth)
      cuda::async_copy_16(cuda::shared_address(&shared.inputs[kWindow + t][at]),
                          row + block.element(a, at));
    else if (t % kBlocks == block.rank)
      cuda::async_copy_16(cuda::shared_address(&shared.z[t / kBlocks][at - kWidth]),
                          row + place(block.key_head, a.d.first.z, a.d.step.z) +
                              block.of_key * kHead + at - kWidth);
  }
}

// Element i of the block's inputs at token t, convolved.
__device__ __forceinline__ float convolve(const Shared& shared, int t, int i) {
  const float4 weights = shared.conv[i];
  float sum = fmaf(weights.x, shared.inputs[t][i], 0.f);
  sum = fmaf(weights.y, shared.inputs[t + 1][i], sum);
  sum = fmaf(weights.z, shared.inputs[t + 2][i], sum);
  return silu(fmaf(weights.w, shared.inputs[t + 3][i], sum));
}

// A warp: q or k (part 0 or 1) of token t, normed.
__device__ __forceinline__ void prepare(Shared& shared, const Params& a, int t, int part) {
  const int lane = threadIdx.x % 32;
  float x[kPerLane], squares = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    x[i] = convolve(shared, t, part * kHead + lane + 32 * i);
    squares = fmaf(x[i], x[i], squares);
  }
  const float factor = part == 0 ? rsqrtf(static_cast<float>(a.d.key_dim)) : 1;
  const float by = factor / sqrtf(warp_sum(squares) + 1e-6f);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) (part == 0 ? shared.q : shared.k)[t][i][lane] = x[i] * by;
}

// A warp: norm_gated() of a token that the block norms, when its o is there; what can be made
// before is.
__device__ __forceinline__ void norm_own(const Shared& shared, const Params& a, const Block& block,
                                         int own, int64_t t) {
  const int lane = threadIdx.x % 32;
  float norm[kPerLane], gate[kPerLane], o[kPerLane], squares = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    norm[i] = shared.norm[lane + 32 * i], gate[i] = silu(shared.z[own][lane + 32 * i]);
  cuda::barrier_wait(cuda::shared_address(&shared.arrived[own]), 0);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    o[i] = shared.o[own][lane + 32 * i];
    squares = fmaf(o[i], o[i], squares);
  }
  const float inverse = rsqrtf(warp_sum(squares) / static_cast<float>(kHead) + a.w.eps);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    a.att[t * a.d.value_width + block.head * kHead + lane + 32 * i] =
        cuda::bf16_bits(norm[i] * o[i] * inverse * gate[i]);
}

// The block's share of the inputs that the next step begins with. The first value head of a key
// head keeps those of q and k.
__device__ __forceinline__ void keep_inputs(const Shared& shared, const Params& a,
                                            const Block& block, int thread) {
  constexpr int kOfPart = kColumns / 4;
  const int row = thread / (3 * kOfPart), part = thread / kOfPart % 3;
  if (row >= kWindow || (part < 2 && block.of_key > 0)) return;
  const int i = part * kHead + (part < 2 ? block.rank * kColumns : 0) + thread % kOfPart * 4;
  *reinterpret_cast<float4*>(a.conv + (int64_t{shared.to} * kWindow + row) * a.d.channels +
                             block.channel(a, i)) =
      *reinterpret_cast<const float4*>(&shared.inputs[block.span.q_len + row][i]);
}

// Warps 0 to 3 hold the state; the next ones norm what came out. waits_last: all that is read was
// there before the kernel in front.
__global__ void __launch_bounds__(kThreads, kBlocksOfSm)
    step_clusters(const __grid_constant__ Params a, const bool waits_last) {
  __shared__ Shared shared;
  cuda::griddep_launch_dependents();
  const Block block(a);
  const int tokens = block.span.q_len;
  if (tokens == 0) return cuda::griddep_wait();  // all blocks of the cluster
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / kWarpColumns;
  const bool steps = warp < kStepWarps;
  const int column = warp * kWarpColumns + lane % kWarpColumns;  // of a warp that steps

  const int32_t from = a.from[block.span.slot];
  float s[kCommonRows];
  if (steps && from != RecurrentLayer::kNoState) {
    const float* const first = block.state(a, from, column) + group * kCommonRows * kHead;
#pragma unroll
    for (int i = 0; i < kCommonRows; ++i) s[i] = __ldcg(first + i * kHead);
  } else {
#pragma unroll
    for (int i = 0; i < kCommonRows; ++i) s[i] = 0;
  }
  bring_first(shared, a, block, from);
  const bool has_gates = warp == 0 && lane < tokens;
  float a_log = 0, dt_bias = 0;
  if (has_gates) a_log = a.w.a_log[block.head], dt_bias = a.w.dt_bias[block.head];
  if (threadIdx.x == kThreads - 1) shared.to = a.to[block.span.slot];
  if (threadIdx.x < kOwn) {
    const uint32_t barrier = cuda::shared_address(&shared.arrived[threadIdx.x]);
    cuda::barrier_init(barrier, 1);
    cuda::barrier_expect(barrier, kHead * sizeof(float));
  }
  __syncwarp();
  cuda::cluster_arrive_relaxed();
  if (!waits_last) cuda::griddep_wait();

  bring_inputs(shared, a, block);
  cuda::async_copy_commit();
  if (has_gates) {
    const float* const gates =
        a.gates.data + int64_t{block.span.q_start + lane} * a.gates.stride + block.of_key;
    shared.gates[lane] = decay_and_beta(log_decay_and_beta(
        __ldcg(gates + place(block.key_head, a.d.first.a, a.d.step.a)),
        __ldcg(gates + place(block.key_head, a.d.first.b, a.d.step.b)), a_log, dt_bias));
  }
  cuda::async_copy_wait<0>();
  __syncthreads();
  // q and k of a token each, by the warps without a state first.
  const int turn = kWarps - 1 - warp;
#pragma unroll 1
  for (int t = turn / 2; t < tokens; t += kWarps / 2) prepare(shared, a, t, turn % 2);
  float v[kClusterTokens / kRowGroups];  // of its column, every fourth token
#pragma unroll
  for (int i = 0; i < kClusterTokens / kRowGroups; ++i) {
    const int t = i * kRowGroups + group;
    v[i] = steps && t < tokens ? convolve(shared, t, 2 * kHead + column) : 0;
  }
  __syncthreads();
  cuda::cluster_wait();
  if (steps) {
#pragma unroll 1
    for (int t = 0; t < tokens; ++t) {
      const float v_now = __shfl_sync(~0u, t < kRowGroups ? v[0] : v[1],
                                      t % kRowGroups * kWarpColumns + lane % kWarpColumns);
      const float2 gate = shared.gates[t];
      const float o =
          step<kCommonRows>(s, shared.k[t][group], shared.q[t][group], v_now, gate.x, gate.y);
      const int own = t / kBlocks, rank = t % kBlocks;
      if (group == 0)
        cuda::store_remote(
            cuda::remote_address(
                cuda::shared_address(&shared.o[own][block.rank * kColumns + column]), rank),
            o, cuda::remote_address(cuda::shared_address(&shared.arrived[own]), rank));
    }
    float* const to = block.state(a, shared.to, column) + group * kCommonRows * kHead;
#pragma unroll
    for (int i = 0; i < kCommonRows; ++i) to[i * kHead] = s[i];
  } else {
    const int own = warp - kStepWarps, t = own * kBlocks + block.rank;
    if (own < kOwn && t < tokens) norm_own(shared, a, block, own, block.span.q_start + t);
    keep_inputs(shared, a, block, threadIdx.x - kStepWarps * 32);
  }
  if (waits_last) cuda::griddep_wait();  // launches end in their order
}

}  // namespace

void delta::step_by_clusters(Ctx& cx, const Params& a, bool waits_last) {
  CHECK(a.num_tokens <= kClusterTokens);
  CHECK(a.d.key_dim == kHead && a.d.value_dim == kHead && a.d.taps == kTaps);
  cuda::launch(cx.stream, step_clusters,
               {.grid = dim3(static_cast<unsigned>(a.d.value_heads * kBlocks),
                             static_cast<unsigned>(a.num_spans)),
                .block = dim3(kThreads),
                .cluster = kBlocks,
                .reads_inputs = true},
               a, waits_last);
}

}  // namespace nibble::ops::gpu
