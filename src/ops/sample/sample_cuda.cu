// sample_greedy on a GPU.
//   logits [R, V] f32, in    never [ceil(V / 32)], in, or none    out: see GreedyOut
// Bytes: 4 V a row, in the L2 cache if the product before left them there: at V = 201,088 0.8 MB,
// 0.2 us of an H200's memory; at R = 1 it is latency. Up to 128 blocks a row each reduce a part,
// its logits on their way at once; the one that ends last puts the parts together in their order,
// so the result does not depend on which that is. Of many rows a block's start and end cost more
// than its logits, so that there are fewer parts, but under --exact, where a sum is always made of
// 128. The mask and the turn are read together before the wait for the logits. Lost at the end of a
// step of one token: 32 blocks of 256 threads, a logit at a time (17 us), of 1,024, joined in pairs
// of lanes (11.5 us); a rehearsal of what follows the wait, without ids (nothing).
#include <algorithm>
#include <cfloat>
#include <climits>

#include "cuda/arrivals.cuh"
#include "cuda/launch.cuh"
#include "cuda/ordered.cuh"
#include "cuda/parameters.cuh"
#include "ops/all_reduce/gpu_ranks.h"
#include "ops/all_reduce/peer_exchange.cuh"
#include "ops/sample/sample.h"
#include "ops/sample/sample_parts.h"

namespace nibble::ops::gpu {
namespace {

using nibble::cuda::griddep_launch_dependents;
using nibble::cuda::griddep_wait;
using nibble::cuda::of_ordered;
using nibble::cuda::ordered;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
static_assert(kSampleParts <= kThreads);
constexpr int kBatch = 8;  // logits that a thread loads at a time: of 128 parts all at V <= 262,144
constexpr int kBlocks = 2048;  // of all rows, about: twice what an H200 holds

struct Args {
  GreedyOut out;
  const float* logits;
  const uint32_t* never;
  SamplePart* parts;
  uint32_t* counters;  // [R], zero
  int64_t vocab;
};

// Which of columns i, i + kThreads .. before `end`, kBatch of them, may be chosen: a bit for each.
__device__ __forceinline__ uint32_t allowed_ids(const uint32_t* never, int first_id, int i,
                                                int end) {
  uint32_t masked[kBatch] = {}, allowed = 0;
  if (never != nullptr) {
#pragma unroll
    for (int j = 0; j < kBatch; ++j)
      masked[j] = never[(first_id + min(i + j * kThreads, end - 1)) / 32];
  }
#pragma unroll
  for (int j = 0; j < kBatch; ++j) {
    const int at = i + j * kThreads;
    if (at < end && (masked[j] >> ((first_id + at) % 32) & 1) == 0) allowed |= 1u << j;
  }
  return allowed;
}

__device__ __forceinline__ SamplePart no_ids() { return {-FLT_MAX, Greedy::kNone, -FLT_MAX, 0}; }

__device__ bool is_number(float x) { return fabsf(x) <= FLT_MAX; }

// That another block wrote.
__device__ __forceinline__ SamplePart other_part(const SamplePart* part) {
  const int4 v = __ldcg(reinterpret_cast<const int4*>(part));
  return {__int_as_float(v.x), v.y, __int_as_float(v.z), __int_as_float(v.w)};
}

// Of all lanes' parts: the best id, the lowest of equals; what is not finite stays so. The same in
// every lane.
__device__ __forceinline__ SamplePart join_lanes(const SamplePart& p) {
  constexpr unsigned kAll = 0xffffffff;
  SamplePart all;
  all.largest = of_ordered(__reduce_max_sync(kAll, ordered(p.largest)));
  all.sum = p.sum * __expf(p.largest - all.largest);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) all.sum += __shfl_xor_sync(kAll, all.sum, step);
  const uint32_t key = p.best < 0 ? 0 : ordered(p.best_logit + 0.f);  // -0 equals 0
  const uint32_t most = __reduce_max_sync(kAll, key);
  all.best_logit = of_ordered(most);
  const bool is_best = p.best >= 0 && key == most;
  all.best = static_cast<int32_t>(__reduce_min_sync(kAll, is_best ? p.best : INT_MAX));
  if (most == 0) all.best = Greedy::kNone;
  if (__any_sync(kAll, p.best == Greedy::kNotFinite)) all.best = Greedy::kNotFinite;
  return all;
}

// Of all threads' parts; one barrier.
__device__ __forceinline__ SamplePart join_threads(const SamplePart& p,
                                                   SamplePart (&of_warps)[kWarps]) {
  const int lane = threadIdx.x % 32;
  const SamplePart joined = join_lanes(p);
  if (lane == 0) of_warps[threadIdx.x / 32] = joined;
  __syncthreads();
  return join_lanes(lane < kWarps ? of_warps[lane] : no_ids());
}

// Ids i, i + kThreads .. before `end`, kBatch of them: `allowed` as allowed_ids() says.
__device__ __forceinline__ void take(SamplePart& p, bool& is_finite, const float* logits,
                                     uint32_t allowed, int i, int end) {
  float x[kBatch];
#pragma unroll
  for (int j = 0; j < kBatch; ++j) {
    const int at = i + j * kThreads;
    x[j] = at < end ? logits[at] : -FLT_MAX;
  }
  const float before = p.largest;
#pragma unroll
  for (int j = 0; j < kBatch; ++j) {
    is_finite = is_finite && is_number(x[j]);
    p.largest = fmaxf(p.largest, x[j]);
    const bool is_better = (allowed >> j & 1) != 0 && (p.best < 0 || x[j] > p.best_logit);
    p.best = is_better ? i + j * kThreads : p.best;
    p.best_logit = is_better ? x[j] : p.best_logit;
  }
  p.sum *= __expf(before - p.largest);
#pragma unroll
  for (int j = 0; j < kBatch; ++j) p.sum += i + j * kThreads < end ? __expf(x[j] - p.largest) : 0;
}

__device__ __forceinline__ void write_greedy(const GreedyOut& out, int32_t turn, int64_t row,
                                             const SamplePart& p) {
  out.rows[turn * out.stride + row] = {p.best,
                                       p.best < 0 ? 0 : p.best_logit - p.largest - logf(p.sum)};
  if (out.ids != nullptr) out.ids[row] = max(0, p.best);  // the host ends a row without an id
}

__global__ void __launch_bounds__(kThreads) greedy_kernel(const __grid_constant__ Args a) {
  __shared__ SamplePart of_warps[kWarps];
  __shared__ bool is_last;
  const int64_t row = blockIdx.y;
  const int parts = static_cast<int>(gridDim.x), vocab = static_cast<int>(a.vocab);
  const int each = (vocab + parts - 1) / parts;
  const int begin = static_cast<int>(blockIdx.x) * each, end = min(begin + each, vocab);
  const float* logits = a.logits + row * a.vocab;
  // They come with the step, not from the kernel before.
  const int32_t turn = *a.out.turn;
  int first = begin + static_cast<int>(threadIdx.x);
  uint32_t allowed = allowed_ids(a.never, a.out.first_id, first, end);
  nibble::cuda::touch_parameters(a);
  griddep_wait();
  griddep_launch_dependents();

  SamplePart p = no_ids();
  bool is_finite = true;
  while (first < end) {
    take(p, is_finite, logits, allowed, first, end);
    first += kBatch * kThreads;
    if (first < end) allowed = allowed_ids(a.never, a.out.first_id, first, end);
  }
  if (!is_finite) p = {0, Greedy::kNotFinite, 0, 0};
  p = join_threads(p, of_warps);
  if (threadIdx.x == 0) {
    a.parts[row * kSampleParts + blockIdx.x] = p;
    is_last = nibble::cuda::is_last_arrival(a.counters + row, parts);
  }
  __syncthreads();
  if (!is_last) return;
  p = no_ids();
  if (threadIdx.x < parts) p = other_part(a.parts + row * kSampleParts + threadIdx.x);
  p = join_threads(p, of_warps);
  if (threadIdx.x > 0) return;
  if (p.best >= 0) p.best += a.out.first_id;
  a.parts[row * kSampleParts] = p;  // for join_greedy and sample_drawn
  write_greedy(a.out, turn, row, p);
}

// Of the parts of two ranks, those of lower ids first.
__device__ SamplePart join_two(const SamplePart& a, const SamplePart& b) {
  SamplePart all = a.best < 0 || (b.best >= 0 && b.best_logit > a.best_logit) ? b : a;
  if (a.best == Greedy::kNotFinite || b.best == Greedy::kNotFinite) all.best = Greedy::kNotFinite;
  all.largest = fmaxf(a.largest, b.largest);
  all.sum = a.sum * __expf(a.largest - all.largest) + b.sum * __expf(b.largest - all.largest);
  return all;
}

// A row a thread. A rank that does not come leaves what is no number.
__global__ void __launch_bounds__(kThreads)
    join_kernel(const __grid_constant__ PeerMemory m, const GreedyOut out, SamplePart* parts,
                int rows) {
  griddep_wait();
  const uint32_t number = exchange_number(m);
  const int row = blockIdx.x * kThreads + threadIdx.x;
  if (row < rows) {
    SamplePart& joined = parts[int64_t{row} * kSampleParts];
    const SamplePart mine = joined;
    for (int r = 1; r < m.size; ++r) {
      PeerMemory::Packet* const to = packets_of(m, (m.rank + r) % m.size, m.rank, number) + 2 * row;
      send(to, {__float_as_uint(mine.best_logit), static_cast<uint32_t>(mine.best)}, number);
      send(to + 1, {__float_as_uint(mine.largest), __float_as_uint(mine.sum)}, number);
    }
    SamplePart all = no_ids();
    for (int r = 0; r < m.size; ++r) {
      SamplePart part = mine;
      if (r != m.rank) {
        const PeerMemory::Packet* const from = packets_of(m, m.rank, r, number) + 2 * row;
        uint2 best{}, sum{};
        const bool has_come = receive(from, number, m, best) && receive(from + 1, number, m, sum);
        part = {__uint_as_float(best.x), static_cast<int32_t>(best.y), __uint_as_float(sum.x),
                __uint_as_float(sum.y)};
        if (!has_come) part = {0, Greedy::kNotFinite, 0, 0};
      }
      all = join_two(all, part);
    }
    joined = all;
    write_greedy(out, *out.turn, row, all);
  }
  end_exchange(m, number);
}

}  // namespace

void join_greedy(Ctx& cx, const GreedyOut& out, int64_t rows) {
  const PeerMemory& peers = ranks_of(cx).peers();
  SamplePart* const parts = SampleScratch(Scratch(cx.scratch), rows).parts;
  const int64_t most = peers.capacity / 4;  // two packets each
  for (int64_t at = 0; at < rows; at += most) {
    const int64_t n = std::min(most, rows - at);
    GreedyOut here = out;
    here.rows += at;
    if (here.ids != nullptr) here.ids += at;
    cuda::launch(cx.stream, join_kernel,
                 {.grid = dim3(static_cast<unsigned>((n + kThreads - 1) / kThreads)),
                  .block = dim3(kThreads),
                  .release = nibble::cuda::Release::kAfterWait},
                 peers, here, parts + at * kSampleParts, static_cast<int>(n));
  }
}

void sample_greedy(Ctx& cx, const GreedyOut& out, const Tensor& logits, const uint32_t* never) {
  const int64_t rows = logits.dim(0);
  if (rows == 0) return;
  const SampleScratch scratch(Scratch(cx.scratch), rows);
  const Args args{.out = out,
                  .logits = logits.as<float>(),
                  .never = never,
                  .parts = scratch.parts,
                  .counters = cx.counters,
                  .vocab = logits.dim(1)};
  const int64_t parts =
      cx.kernels.exact ? kSampleParts : std::clamp<int64_t>(kBlocks / rows, 4, kSampleParts);
  cuda::launch(cx.stream, greedy_kernel,
               {.grid = dim3(static_cast<unsigned>(parts), static_cast<unsigned>(rows)),
                .block = kThreads,
                .release = nibble::cuda::Release::kAfterWait,
                .reads_inputs = true},
               args);
}

}  // namespace nibble::ops::gpu
