// delta_rule for few tokens of each sequence, in one launch: a cluster of blocks has a value head,
// a block 32 columns of its state, of one sequence after the other. What comes next (a state, a
// token's inputs) is on its way to shared memory while a token is convolved, normed and learnt; o
// goes to all blocks of the cluster for the gated norm. Each makes q and k.
//   as delta_rule_any_cuda.cu, whose bits these are
// Needs DK <= 128, DV <= 128 and a multiple of 4, 4 taps at most. Bytes: 8 HV DK DV a sequence:
// Qwen3-Next-80B 4.2 MB a layer, 0.9 us of an H200's 4.55 TB/s, 18 us of a GB10's 233 GB/s. A
// block's first state is read before the wait for the kernel in front where it is known to be
// complete. Lost: a block a head and sequence, its state straight to registers (38% of the read
// bandwidth from 16 sequences on: each has six trips to memory, one after the other).
#include <algorithm>

#include "cuda/async_copy.cuh"
#include "cuda/cluster.cuh"
#include "cuda/launch.cuh"
#include "cuda/mbarrier.cuh"
#include "ops/delta_rule/delta_rule.cuh"

namespace nibble::ops::gpu {
namespace {

using namespace delta;

constexpr int kWarps = 4, kThreads = kWarps * 32, kColumns = kWarps * kWarpColumns;
constexpr int kMostDim = 128, kMostDecodeTaps = 4;
constexpr int kBlocksOfSm = NIBBLE_CUDA_SM == 121 ? 2 : 4;
constexpr int kInputs = 2 * kMostDim + kColumns;
// Floats of a group's rows of the state; groups lie in banks of their own.
template <int kRows>
constexpr int kGroupFloats = kRows* kColumns + kWarpColumns;

// A token on its way.
struct Stage {
  alignas(16) float state[kRowGroups * kGroupFloats<kCommonRows>];  // before it
  float x[kMostDecodeTaps][kInputs];                                // of q, k, v, by taps
  float z[kColumns], gates[2];                                      // b, a
};
// A sequence's tokens in the step, and slots of its states.
struct Sequence {
  int32_t q_start, q_len, from, to;
};
constexpr int kHeldSequences = kThreads;  // of a block, in shared memory
__device__ __forceinline__ Sequence load_sequence(const Params& a, int index) {
  const Span span = a.spans[index];
  return {span.q_start, span.q_len, a.from[span.slot], a.to[span.slot]};
}

struct Shared {
  Stage stages[2];
  alignas(16) float k[kMostDim];
  alignas(16) float q[kMostDim];
  float v[kColumns];
  float w[kMostDecodeTaps][kInputs];  // of the convolution
  Sequence sequences[kHeldSequences];
  float o[2][kMostDim];  // of all blocks, by turns
  alignas(8) uint64_t arrived[2];
};

// What a block does next: token `at` of one of its sequences.
struct Item {
  Sequence of;
  int sequence, at;  // of the step
};

// A block's columns of a head, and the channels that it convolves: q, k, then its own of v.
struct Tile {
  int32_t h, g;
  int first, end;  // columns
  int all;         // channels

  __device__ __forceinline__ Tile(const Params& a, int tiles) {
    h = static_cast<int32_t>(blockIdx.x) / tiles, g = h / a.d.ratio;
    first = static_cast<int>(blockIdx.x) % tiles * kColumns;
    end = min(first + kColumns, a.d.value_dim);
    all = 2 * a.d.key_dim + end - first;
  }
  // Of the convolution, and where it lies in a row of inputs.
  struct Channel {
    int32_t index, place;
  };
  __device__ __forceinline__ Channel channel(const Params& a, int c) const {
    const int key_dim = a.d.key_dim, i = c - 2 * key_dim + first;
    if (i >= first)
      return {2 * a.d.key_width + h * a.d.value_dim + i,
              static_cast<int32_t>(place(g, a.d.first.v, a.d.step.v)) +
                  h % a.d.ratio * a.d.value_dim + i};
    if (c >= key_dim)
      return {a.d.key_width + g * key_dim + c - key_dim,
              static_cast<int32_t>(place(g, a.d.first.k, a.d.step.k)) + c - key_dim};
    return {g * key_dim + c, static_cast<int32_t>(place(g, a.d.first.q, a.d.step.q)) + c};
  }
};

__device__ __forceinline__ void bring_4(float* to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(cuda::shared_address(to)), "l"(from)
               : "memory");
}

// take(address in the stage, element of the layer's states) for each 16 bytes of a block's part of
// a state, as threads bring and store them.
template <int kRows, class Take>
__device__ __forceinline__ void each_piece(Stage& stage, const Params& a, const Tile& tile,
                                           int32_t slot, const Take& take) {
  const int pieces = (tile.end - tile.first) / 4, key_dim = a.d.key_dim, dim = a.d.value_dim;
  const int64_t state = (int64_t{slot} * a.d.value_heads + tile.h) * key_dim * dim + tile.first;
#pragma unroll 1  // for want of registers, here and below
  for (int i = threadIdx.x; i < key_dim * pieces; i += kThreads) {
    const int row = i / pieces, column = i % pieces * 4;
    take(stage.state + row / kRows * kGroupFloats<kRows> + row % kRows * kColumns + column,
         state + int64_t{row} * dim + column);
  }
}

template <int kRows>
__device__ __forceinline__ void bring_state(Stage& to, const Params& a, const Tile& tile,
                                            int32_t from) {
  each_piece<kRows>(to, a, tile, from, [&](float* at, int64_t element) {
    if (from == RecurrentLayer::kNoState)
      *reinterpret_cast<float4*>(at) = {0, 0, 0, 0};
    else
      cuda::async_copy_16(cuda::shared_address(at), a.state + element);
  });
}

template <int kRows>
__device__ __forceinline__ void store_state(Stage& from, const Params& a, const Tile& tile,
                                            int32_t to) {
  each_piece<kRows>(from, a, tile, to, [&](const float* at, int64_t element) {
    *reinterpret_cast<float4*>(a.state + element) = *reinterpret_cast<const float4*>(at);
  });
}

__device__ __forceinline__ void bring_inputs(Stage& to, const Params& a, const Tile& tile,
                                             const Item& item) {
  const int thread = threadIdx.x, taps = a.d.taps;
  const int64_t row = item.of.q_start + item.at;
#pragma unroll 1
  for (int c = thread; c < tile.all; c += kThreads) {
    const Tile::Channel channel = tile.channel(a, c);
#pragma unroll 1
    for (int i = 0; i < taps; ++i) {
      const int ago = taps - 1 - i;
      if (item.at >= ago)
        bring_4(&to.x[i][c], a.qkvz + (row - ago) * a.d.width + channel.place);
      else if (item.of.from == RecurrentLayer::kNoState)
        to.x[i][c] = 0;
      else
        bring_4(&to.x[i][c], a.conv +
                                 (int64_t{item.of.from} * (taps - 1) + i + item.at) * a.d.channels +
                                 channel.index);
    }
  }
  // By the warp that reads it.
  if (thread < tile.end - tile.first)
    bring_4(&to.z[thread], a.qkvz + row * a.d.width + place(tile.g, a.d.first.z, a.d.step.z) +
                               tile.h % a.d.ratio * a.d.value_dim + tile.first + thread);
  if (thread < 2)
    bring_4(&to.gates[thread], a.gates + row * 2 * a.d.value_heads + tile.h % a.d.ratio +
                                   (thread == 0 ? place(tile.g, a.d.first.b, a.d.step.b)
                                                : place(tile.g, a.d.first.a, a.d.step.a)));
}

// q, k and v of a token; of a sequence's last, its inputs are kept by the first block that has
// them.
__device__ __forceinline__ void convolve_token(Shared& to, const Stage& from, const Params& a,
                                               const Tile& tile, const Item& item) {
  const int key_dim = a.d.key_dim, taps = a.d.taps;
  const bool is_last = item.at + 1 == item.of.q_len;
  const bool keeps_key = tile.first == 0 && tile.h % a.d.ratio == 0;
#pragma unroll 1
  for (int c = threadIdx.x; c < tile.all; c += kThreads) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kMostDecodeTaps; ++i)
      if (i < taps) sum = fmaf(to.w[i][c], from.x[i][c], sum);
    (c < key_dim       ? to.q[c]
     : c < 2 * key_dim ? to.k[c - key_dim]
                       : to.v[c - 2 * key_dim]) = silu(sum);
    if (!is_last || (c < 2 * key_dim && !keeps_key)) continue;
    float* const kept =
        a.conv + int64_t{item.of.to} * (taps - 1) * a.d.channels + tile.channel(a, c).index;
#pragma unroll
    for (int i = 1; i < kMostDecodeTaps; ++i)
      if (i < taps) kept[(i - 1) * a.d.channels] = from.x[i][c];
  }
}

// What a block has before its first token: barriers, zeros where nothing is brought, weights.
template <int kRows>
__device__ __forceinline__ void begin(Shared& shared, const Params& a, const Tile& tile) {
  if (threadIdx.x < 2) cuda::barrier_init(cuda::shared_address(&shared.arrived[threadIdx.x]), 1);
  if (a.d.key_dim < kRowGroups * kRows || a.d.value_dim % kColumns != 0)
    for (int i = threadIdx.x; i < static_cast<int>(sizeof(Shared::stages) / 4 + 2 * kMostDim);
         i += kThreads)
      reinterpret_cast<float*>(&shared)[i] = 0;
#pragma unroll 1
  for (int c = threadIdx.x; c < tile.all; c += kThreads)
#pragma unroll 1
    for (int i = 0; i < a.d.taps; ++i)
      shared.w[i][c] = a.w.conv[int64_t{tile.channel(a, c).index} * a.d.taps + i];
  __syncthreads();
  cuda::cluster_arrive_relaxed();
}

// The next sequence from `index` on that is of this kernel, and its first token.
__device__ __forceinline__ Item find(const Shared& shared, const Params& a, int index, int most) {
  const int parts = static_cast<int>(gridDim.y);
  Item item{{}, index, 0};
  for (; item.sequence < a.num_spans; item.sequence += parts) {
    const int held = item.sequence / parts;
    item.of = held < kHeldSequences ? shared.sequences[held] : load_sequence(a, item.sequence);
    if (item.of.q_len <= most) break;
  }
  return item;
}

// Grid (HV * tiles, parts of the sequences), a cluster the tiles of a head. Spans of more than
// `most` tokens are another kernel's. is_state_old: it may be read before the wait.
template <int kRows>
__global__ void __launch_bounds__(kThreads, kBlocksOfSm)
    decode(const __grid_constant__ Params a, int tiles, int most, bool is_state_old) {
  extern __shared__ __align__(128) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const int key_dim = a.d.key_dim, dim = a.d.value_dim;
  const auto barrier = [&](int i) { return cuda::shared_address(&shared.arrived[i]); };
  const Tile tile(a, tiles);
  begin<kRows>(shared, a, tile);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = lane / kWarpColumns;
  const int in_tile = warp * kWarpColumns + lane % kWarpColumns, column = tile.first + in_tile;
  const int at_of_state = group * kGroupFloats<kRows> + in_tile;
  if (!is_state_old) cuda::griddep_wait();
  const int parts = static_cast<int>(gridDim.y), first = static_cast<int>(blockIdx.y);
  if (const int index = first + static_cast<int>(threadIdx.x) * parts; index < a.num_spans)
    shared.sequences[threadIdx.x] = load_sequence(a, index);
  __syncthreads();
  Item item = find(shared, a, first, most);
  if (item.sequence < a.num_spans) bring_state<kRows>(shared.stages[0], a, tile, item.of.from);
  if (is_state_old) cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  if (item.sequence < a.num_spans) bring_inputs(shared.stages[0], a, tile, item);
  cuda::async_copy_commit();
  __syncwarp();
  cuda::cluster_wait();
#pragma unroll 1
  for (int turn = 0; item.sequence < a.num_spans; ++turn) {
    Stage &stage = shared.stages[turn % 2], &other = shared.stages[(turn + 1) % 2];
    cuda::async_copy_wait<0>();
    __syncthreads();  // it is there, and nobody reads the other
    Item next = item;
    if (++next.at == item.of.q_len) next = find(shared, a, item.sequence + parts, most);
    if (next.sequence < a.num_spans) {
      if (next.at == 0) bring_state<kRows>(other, a, tile, next.of.from);
      bring_inputs(other, a, tile, next);
      cuda::async_copy_commit();
    }
    if (threadIdx.x == 0) cuda::barrier_expect(barrier(turn % 2), dim * 4);
    convolve_token(shared, stage, a, tile, item);
    const float2 gates = decay_and_beta(a, stage.gates[0], stage.gates[1], tile.h);
    float s[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) s[i] = stage.state[at_of_state + i * kColumns];
    __syncthreads();
    if (warp == 0) l2_norm(shared.q, shared.q, key_dim, rsqrtf(static_cast<float>(key_dim)));
    if (warp == 1) l2_norm(shared.k, shared.k, key_dim, 1);
    __syncthreads();
    const float out = step<kRows>(s, shared.k + group * kRows, shared.q + group * kRows,
                                  shared.v[in_tile], gates.x, gates.y);
    float* const o = shared.o[turn % 2];
    if (column < dim)
      for (int r = group; r < tiles; r += kRowGroups)  // its lanes have the same sum
        cuda::store_remote(cuda::remote_address(cuda::shared_address(o + column), r), out,
                           cuda::remote_address(barrier(turn % 2), r));
    const bool is_last = item.at + 1 == item.of.q_len;
    float* const left = (is_last ? stage : other).state + at_of_state;
#pragma unroll
    for (int i = 0; i < kRows; ++i) left[i * kColumns] = s[i];
    if (is_last) {
      __syncthreads();
      store_state<kRows>(stage, a, tile, item.of.to);
    }
    __syncwarp();
    if (warp == 0) {
      cuda::barrier_wait_together(barrier(turn % 2), turn / 2 % 2);
      const float inverse = inverse_rms_of(a, o);
      if (tile.first + lane < dim)
        store_gated(a, item.of.q_start + item.at, tile.h, tile.first + lane, o[tile.first + lane],
                    inverse, stage.z[lane]);
    }
    item = next;
  }
}

}  // namespace

bool delta::fits_decode(const DeltaRuleDesc& d) {
  return d.key_dim <= kMostDim && d.value_dim <= kMostDim && d.value_dim % 4 == 0 &&
         d.taps <= kMostDecodeTaps;
}

void delta::decode_spans(Ctx& cx, const Params& a, int most) {
  const int tiles = (a.d.value_dim + kColumns - 1) / kColumns, blocks = a.d.value_heads * tiles;
  const int parts =
      std::clamp(kBlocksOfSm * cx.kernels.gpu.num_sms / blocks, 1, std::max(a.num_spans, 1));
  const auto kernel = a.d.key_dim <= kNarrowDim ? decode<kNarrowRows> : decode<kCommonRows>;
  cuda::launch(cx.stream, kernel,
               {.grid = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(parts)),
                .block = dim3(kThreads),
                .smem_bytes = sizeof(Shared),
                .cluster = static_cast<unsigned>(tiles),
                .release = cuda::Release::kAfterWait,
                .reads_inputs = true},
               a, tiles, most, cx.stream.order.is_complete(a.state));
}

void delta_rule_decode(Ctx& cx, const Tensor& att, const RecurrentLayer& state,
                       const DeltaRuleIn& in, const DeltaRuleDesc& desc,
                       const DeltaRuleWeights& weights, const Step& s) {
  if (s.num_tokens == 0) return;
  CHECK(fits_decode(desc));
  decode_spans(cx, params_of(att, state, in, desc, weights, s), INT32_MAX);
}

}  // namespace nibble::ops::gpu
