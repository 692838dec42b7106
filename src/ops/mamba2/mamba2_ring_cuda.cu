// mamba2 for one token of each sequence, of any number, in one launch: blocks stay, the states of
// the heads to come on their way to a ring in shared memory, the next sequence's inputs to
// registers. A block has up to 8 heads of a group; a cluster has the group, whose norm needs the
// sums of all its heads.
//   as mamba2_any_cuda.cu, whose bits these are
// Needs N = 128, P = 64, 4 taps. Bytes: 8 NH N P a sequence, of Nemotron-3-Nano-30B 4.3 MB a layer
// with inputs: 8 sequences 35 MB, 8 us of an H200's 4.37 TB/s; 64 281 MB, 64 us. Not
// timed by itself yet: beside the rows before, a layer takes 7, 27 and 55 us less of a step of 1, 8
// and 64 (2026-11-23, docs/lab/mamba2.md).
#include <algorithm>

#include "cuda/bulk_copy.cuh"
#include "cuda/cluster.cuh"
#include "cuda/launch.cuh"
#include "ops/mamba2/mamba2.cuh"

namespace nibble::ops::gpu {
namespace {

using namespace mamba;

constexpr int kN = 128, kP = 64, kTaps = 4;
constexpr int kMostHeads = 8;  // of a block
constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kStages = NIBBLE_CUDA_SM == 121 ? 2 : 6, kStateBytes = kN * kP * 4;
constexpr int kMostUnits = 64, kMostParts = 8;
static_assert(kThreads == kRowGroups * kP && kN == kCommonDim);

// A group of a sequence: what a cluster works on at a time.
struct Unit {
  int32_t row, from, to, group;
};

struct Shared {
  alignas(16) float b[kN];
  alignas(16) float c[kN];
  float x[2][kMostHeads][kP];  // of this unit and the next
  float2 gates[kMostHeads];    // decay, dt
  float y[kMostHeads][kRowGroups][kP];
  float sums[2][kMostParts * kMostHeads];  // of y^2, of all heads of the group
  Unit units[kMostUnits];
  uint64_t full[kStages], empty[kStages], met[2];
};

// How the heads of a group are shared out, and what a block has to do.
struct Share {
  int parts;      // blocks of a cluster
  int heads;      // of a block
  int num_units;  // of all clusters
};

// One of up to three channels of a thread: B, C, then x of the block's heads.
struct Channels {
  int32_t group, first_head, heads, thread;
  __device__ __forceinline__ bool is_there(int turn) const {
    return turn == 0 || (turn - 1) * kThreads + thread < heads * kP;
  }
  __device__ __forceinline__ int32_t operator()(const Dims& d, int turn) const {
    if (turn > 0) return first_head * kP + (turn - 1) * kThreads + thread;
    return thread < kN ? d.b + group * kN + thread : d.c + group * kN + thread - kN;
  }
};
constexpr int kTurns = 1 + kMostHeads * kP / kThreads;

// What a thread brings of a unit.
struct Raw {
  float x[kTurns][kTaps], bias[kTurns];
  float4 conv[kTurns];
  float z[2];  // of the head whose number is the warp's
  float dt;    // of the head whose number is the thread's

  // Of steps before, and weights.
  __device__ __forceinline__ void bring_old(const Params& a, const Unit& u, const Channels& at) {
#pragma unroll
    for (int k = 0; k < kTurns; ++k) {
      if (!at.is_there(k)) continue;
      const int32_t channel = at(a.d, k);
      bias[k] = a.w.conv_bias[channel];
      conv[k] = *reinterpret_cast<const float4*>(a.w.conv + int64_t{channel} * kTaps);
#pragma unroll
      for (int j = 0; j + 1 < kTaps; ++j)
        x[k][j] =
            u.from == RecurrentLayer::kNoState
                ? 0
                : __ldcg(a.conv + (int64_t{u.from} * (kTaps - 1) + j) * a.d.channels + channel);
    }
  }
  __device__ __forceinline__ void bring_new(const Params& a, const Unit& u, const Channels& at) {
    const float* const in = a.in + int64_t{u.row} * a.d.width;
#pragma unroll
    for (int k = 0; k < kTurns; ++k)
      if (at.is_there(k)) x[k][kTaps - 1] = __ldcg(in + a.d.inner + at(a.d, k));
    const int warp = at.thread / 32;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (warp < at.heads)
        z[i] = __ldcg(in + (at.first_head + warp) * kP + 32 * i + at.thread % 32);
    if (at.thread < at.heads) dt = __ldcg(in + a.d.dt + at.first_head + at.thread);
  }
  // The convolution, and what is kept of its inputs: B and C by the first block of a group.
  __device__ __forceinline__ void convolve(Shared& to, int turn, const Params& a, const Unit& u,
                                           const Channels& at, bool is_first) const {
#pragma unroll
    for (int k = 0; k < kTurns; ++k) {
      if (!at.is_there(k)) continue;
      float sum = fmaf(conv[k].x, x[k][0], bias[k]);
      sum = fmaf(conv[k].y, x[k][1], sum), sum = fmaf(conv[k].z, x[k][2], sum);
      const float value = silu(fmaf(conv[k].w, x[k][3], sum));
      if (k > 0)
        (&to.x[turn][0][0])[(k - 1) * kThreads + at.thread] = value;
      else
        at.thread < kN ? to.b[at.thread] = value : to.c[at.thread - kN] = value;
      if (k == 0 && !is_first) continue;
      float* const kept = a.conv + int64_t{u.to} * (kTaps - 1) * a.d.channels + at(a.d, k);
#pragma unroll
      for (int j = 1; j < kTaps; ++j) kept[int64_t{j - 1} * a.d.channels] = x[k][j];
    }
    if (at.thread < at.heads) to.gates[at.thread] = gates_of(a, dt, at.first_head + at.thread);
  }
};

__device__ __forceinline__ void meet_warps() {  // all but the one that copies
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

// By one thread: states of the block's heads, unit after unit, as the ring has room.
__device__ __forceinline__ void copy_states(const Shared& shared, const float* ring,
                                            const Params& a, const Share& share, int units,
                                            int rank, int stages) {
  const uint64_t policy = cuda::evict_first();
  for (int i = 0, n = 0; i < units; ++i) {
    const Unit& u = shared.units[i];
    const int32_t first = u.group * a.d.group_heads + rank * share.heads;
    for (int h = 0; h < share.heads; ++h, ++n) {
      const int stage = n % stages;
      if (n >= stages)
        cuda::barrier_wait(cuda::shared_address(&shared.empty[stage]), (n / stages - 1) % 2);
      const uint32_t full = cuda::shared_address(&shared.full[stage]);
      if (u.from == RecurrentLayer::kNoState)
        cuda::barrier_arrive(full);
      else
        cuda::bulk_copy(cuda::shared_address(ring + stage * kN * kP),
                        a.state + (int64_t{u.from} * a.d.heads + first + h) * kN * kP, kStateBytes,
                        full, policy);
    }
  }
}

// Head h of the group's is head i of the block's: its state moves on; y, before its four parts are
// added, to shared memory. A warp has 32 columns of a run of rows.
__device__ __forceinline__ void recur(Shared& shared, const float* state, uint32_t empty,
                                      const Params& a, const Unit& u, int64_t h, int i, int turn) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = warp / 2;
  const int column = warp % 2 * 32 + lane, first = group * kCommonRows;
  float s[kCommonRows];
#pragma unroll
  for (int r = 0; r < kCommonRows; ++r)
    s[r] = u.from == RecurrentLayer::kNoState ? 0 : state[(first + r) * kP + column];
  __syncwarp();
  if (lane == 0) cuda::barrier_arrive(empty);
  const float decay = shared.gates[i].x, value = shared.gates[i].y * shared.x[turn][i][column];
  float* const left = a.state + ((u.to * int64_t{a.d.heads} + h) * kN + first) * kP + column;
  float y[4] = {};
#pragma unroll
  for (int r = 0; r < kCommonRows; r += 4) {
    advance(s + r, y, shared.b + first + r, shared.c + first + r, decay, value);
#pragma unroll
    for (int j = 0; j < 4; ++j) __stcs(left + (r + j) * kP, s[r + j]);
  }
  shared.y[i][group][column] = (y[0] + y[1]) + (y[2] + y[3]);
}

// A warp a head: y, gated and normed by all of its group.
__device__ __forceinline__ void finish(Shared& shared, const Params& a, const Unit& u,
                                       const Share& share, int rank, const float (&z)[2], int turn,
                                       int n) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t met = cuda::shared_address(&shared.met[n % 2]);
  if (share.parts > 1 && threadIdx.x == 0) cuda::barrier_expect(met, 4 * a.d.group_heads);
  const int32_t h = u.group * a.d.group_heads + rank * share.heads + warp;
  float y[2], squares = 0;
  if (warp < share.heads) {
    const float skip = a.w.d[h];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = 32 * i + lane;
      const auto& of = shared.y[warp];
      const float sum = (of[0][column] + of[1][column]) + (of[2][column] + of[3][column]);
      y[i] = fmaf(skip, shared.x[turn][warp][column], sum) * silu(z[i]);
      squares = fmaf(y[i], y[i], squares);
    }
    squares = warp_sum(squares);
    if (share.parts == 1 && lane == 0) shared.sums[n % 2][warp] = squares;
    if (share.parts > 1 && lane < share.parts)
      cuda::store_remote(
          cuda::remote_address(cuda::shared_address(&shared.sums[n % 2][rank * share.heads + warp]),
                               lane),
          squares, cuda::remote_address(met, lane));
  }
  if (share.parts == 1)  // of no cluster: blocks may not store to others
    meet_warps();
  else
    cuda::barrier_wait(met, n / 2 % 2);
  if (warp >= share.heads) return;
  const float factor = norm_factor(a, [&](int i) { return shared.sums[n % 2][i]; });
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int32_t at = h * kP + 32 * i + lane;
    a.att[int64_t{u.row} * a.d.inner + at] = cuda::bf16_bits(a.w.norm[at] * y[i] * factor);
  }
}

// Grid: clusters of share.parts blocks. Of so few registers a thread that a block lies beside one
// of the kernel in front.
__global__ void __launch_bounds__(kThreads + 32, NIBBLE_CUDA_SM == 121 ? 1 : 2)
    decode_ring(const __grid_constant__ Params a, Share share, int stages) {
  extern __shared__ __align__(128) float ring[];
  __shared__ Shared shared;
  const int rank = static_cast<int>(blockIdx.x) % share.parts, thread = threadIdx.x;
  const int64_t cluster = blockIdx.x / share.parts, clusters = gridDim.x / share.parts;
  const auto first = static_cast<int>(cluster * share.num_units / clusters);
  const int units = static_cast<int>((cluster + 1) * share.num_units / clusters) - first;
  if (thread < stages) {
    cuda::barrier_init(cuda::shared_address(&shared.full[thread]), 1);
    cuda::barrier_init(cuda::shared_address(&shared.empty[thread]), kWarps);
  }
  if (thread < 2) cuda::barrier_init(cuda::shared_address(&shared.met[thread]), 1);
  cuda::barrier_init_fence();
  for (int i = thread; i < units; i += kThreads + 32) {  // neighbours share their weights
    const Span span = a.spans[(first + i) % a.num_spans];
    shared.units[i] = {span.q_start, a.from[span.slot], a.to[span.slot], (first + i) / a.num_spans};
  }
  if (share.parts > 1) cuda::cluster_arrive_relaxed();
  __syncthreads();
  if (thread >= kThreads) {
    if (share.parts > 1) cuda::cluster_wait();
    if (thread == kThreads) copy_states(shared, ring, a, share, units, rank, stages);
    return;
  }
  const auto channels = [&](const Unit& u) {
    return Channels{u.group, u.group * a.d.group_heads + rank * share.heads, share.heads, thread};
  };
  Raw raw;
  raw.bring_old(a, shared.units[0], channels(shared.units[0]));
  if (share.parts > 1) cuda::cluster_wait();
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  raw.bring_new(a, shared.units[0], channels(shared.units[0]));
  for (int i = 0, n = 0; i < units; ++i) {
    const Unit u = shared.units[i];
    const Channels at = channels(u);
    raw.convolve(shared, i % 2, a, u, at, rank == 0);
    const float z[2] = {raw.z[0], raw.z[1]};
    meet_warps();
    if (i + 1 < units) {
      const Unit& next = shared.units[i + 1];
      raw.bring_old(a, next, channels(next));
      raw.bring_new(a, next, channels(next));
    }
    for (int h = 0; h < share.heads; ++h, ++n) {
      const int stage = n % stages;
      cuda::barrier_wait(cuda::shared_address(&shared.full[stage]), n / stages % 2);
      recur(shared, ring + stage * kN * kP, cuda::shared_address(&shared.empty[stage]), a, u,
            at.first_head + h, h, i % 2);
    }
    meet_warps();
    finish(shared, a, u, share, rank, z, i % 2, i);
  }
}

// The parts of a group that keep most of the GPU at work: a block has a turn of so many heads.
Share share_out(const Dims& d, int num_spans, int num_sms, int& clusters) {
  const int units = d.heads / d.group_heads * num_spans;
  Share best{};
  int least = 0;
  for (int parts = 1; parts <= kMostParts; ++parts) {
    const int heads = d.group_heads / parts;
    if (d.group_heads % parts != 0 || heads > kMostHeads) continue;
    // Clusters lie within parts of the GPU, of which some SMs may be left over.
    const int room = std::max(1, parts > 2 ? num_sms / parts - 1 : num_sms / parts);
    const int turns = (units + room - 1) / room * heads;
    if (least > 0 && turns >= least) continue;
    least = turns, best = {parts, heads, units};
    clusters = std::max(std::min(units, room), (units + kMostUnits - 1) / kMostUnits);
  }
  CHECK(least > 0);
  return best;
}

}  // namespace

void mamba2_ring(Ctx& cx, const Tensor& att, const RecurrentLayer& state, const Tensor& in,
                 const Mamba2Desc& desc, const Mamba2Weights& weights, const Step& s) {
  if (s.num_tokens != s.num_spans) {
    const bool is_few =
        s.num_tokens <= kMambaDecodeTokens && desc.group_heads() <= kMambaDecodeHeads;
    return (is_few ? mamba2_decode : mamba2_any)(cx, att, state, in, desc, weights, s);
  }
  if (s.num_tokens == 0) return;
  CHECK(desc.state_dim == kN && desc.head_dim == kP && desc.taps == kTaps);
  const Params a = params_of(att, state, in, desc, weights, s);
  int clusters = 0;
  const Share share = share_out(a.d, s.num_spans, cx.kernels.gpu.num_sms, clusters);
  const int heads = (share.num_units + clusters - 1) / clusters * share.heads;
  const int stages = std::min(kStages, heads);
  cuda::launch(cx.stream, decode_ring,
               {.grid = dim3(static_cast<unsigned>(clusters * share.parts)),
                .block = dim3(kThreads + 32),
                .smem_bytes = static_cast<size_t>(stages) * kStateBytes,
                .cluster = static_cast<unsigned>(share.parts),
                .release = cuda::Release::kAfterWait,
                .reads_inputs = true},
               a, share, stages);
}

}  // namespace nibble::ops::gpu
