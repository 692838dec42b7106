// sample_greedy on a GPU.
//   logits [R, V] f32, in    never [ceil(V / 32)], in, or none    out: see GreedyOut
// Bytes: 4 V a row, in the L2 cache if the product before left them there: at V = 201,088 0.8 MB,
// 0.2 us of an H200's memory; at R = 1 it is one launch's latency. 32 blocks a row each reduce a
// part, its logits on their way at once; the one that ends last puts the parts together in their
// order, so the result does not depend on which that is. At the end of a step of one token of
// gpt-oss-120b on an H200, 2026-11-21: 11.5 us (17 with a logit at a time), most of them for code
// that is in no cache: hence the loop that is not unrolled.
#include <cfloat>

#include "cuda/launch.cuh"
#include "ops/sample/sample.h"
#include "ops/sample/sample_parts.h"

namespace nibble::ops::gpu {
namespace {

using nibble::cuda::griddep_launch_dependents;
using nibble::cuda::griddep_wait;

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
static_assert(kWarps == 32);  // a warp joins theirs
constexpr int kBatch = 8;     // logits that a thread loads at a time: all it has at V <= 262,144

struct Args {
  GreedyOut out;
  const float* logits;
  const uint32_t* never;
  SamplePart* parts;
  uint32_t* counters;  // [R], zero
  int64_t vocab;
};

__device__ bool is_allowed(const uint32_t* never, int i) {
  return never == nullptr || (never[i / 32] >> (i % 32) & 1) == 0;
}

__device__ bool is_number(float x) { return fabsf(x) <= FLT_MAX; }

// Both parts seen: the better id, the lower of equals; what is not finite stays so.
__device__ SamplePart join(const SamplePart& a, const SamplePart& b) {
  SamplePart c;
  c.largest = fmaxf(a.largest, b.largest);
  c.sum = a.sum * __expf(a.largest - c.largest) + b.sum * __expf(b.largest - c.largest);
  const bool takes_b = a.best == Greedy::kNone ||
                       (b.best >= 0 && (b.best_logit > a.best_logit ||
                                        (b.best_logit == a.best_logit && b.best < a.best)));
  c.best = takes_b ? b.best : a.best;
  c.best_logit = takes_b ? b.best_logit : a.best_logit;
  if (a.best == Greedy::kNotFinite || b.best == Greedy::kNotFinite) c.best = Greedy::kNotFinite;
  return c;
}

__device__ SamplePart join_lanes(SamplePart p) {
#pragma unroll 1
  for (int offset = 16; offset > 0; offset /= 2) {
    SamplePart other;
    other.best_logit = __shfl_xor_sync(~0u, p.best_logit, offset);
    other.best = __shfl_xor_sync(~0u, p.best, offset);
    other.largest = __shfl_xor_sync(~0u, p.largest, offset);
    other.sum = __shfl_xor_sync(~0u, p.sum, offset);
    // The lower lane's part first, on both sides: the same bits.
    p = (threadIdx.x & offset) == 0 ? join(p, other) : join(other, p);
  }
  return p;
}

// Ids i, i + kThreads .. before `end`, kBatch of them.
__device__ void take(SamplePart& p, bool& is_finite, const float* logits, const uint32_t* never,
                     int i, int end) {
  float x[kBatch];
  bool allowed[kBatch];
#pragma unroll
  for (int j = 0; j < kBatch; ++j) {
    const int at = i + j * kThreads;
    x[j] = at < end ? logits[at] : -FLT_MAX;
    allowed[j] = at < end && is_allowed(never, at);
  }
  const float before = p.largest;
#pragma unroll
  for (int j = 0; j < kBatch; ++j) {
    is_finite = is_finite && is_number(x[j]);
    p.largest = fmaxf(p.largest, x[j]);
    if (!allowed[j] || (p.best >= 0 && x[j] <= p.best_logit)) continue;
    p.best = i + j * kThreads;
    p.best_logit = x[j];
  }
  p.sum *= __expf(before - p.largest);
#pragma unroll
  for (int j = 0; j < kBatch; ++j)
    if (i + j * kThreads < end) p.sum += __expf(x[j] - p.largest);
}

__global__ void __launch_bounds__(kThreads) greedy_kernel(const __grid_constant__ Args a) {
  __shared__ SamplePart of_warps[kWarps];
  __shared__ bool is_last;
  const int64_t row = blockIdx.y;
  const int vocab = static_cast<int>(a.vocab), each = (vocab + kSampleParts - 1) / kSampleParts;
  const int begin = static_cast<int>(blockIdx.x) * each, end = min(begin + each, vocab);
  const float* logits = a.logits + row * a.vocab;
  griddep_wait();
  griddep_launch_dependents();

  SamplePart p{-FLT_MAX, Greedy::kNone, -FLT_MAX, 0};
  bool is_finite = true;
  for (int first = begin + threadIdx.x; first < end; first += kBatch * kThreads)
    take(p, is_finite, logits, a.never, first, end);
  if (!is_finite) p = {0, Greedy::kNotFinite, 0, 0};
  p = join_lanes(p);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = p;
  __syncthreads();
  if (threadIdx.x < 32) p = join_lanes(of_warps[threadIdx.x]);
  if (threadIdx.x == 0) {
    a.parts[row * kSampleParts + blockIdx.x] = p;
    __threadfence();
    is_last = atomicInc(a.counters + row, kSampleParts - 1) == kSampleParts - 1;  // wraps to 0
  }
  __syncthreads();
  if (!is_last || threadIdx.x >= 32) return;
  __threadfence();
  const volatile SamplePart* mine = a.parts + row * kSampleParts + threadIdx.x;
  p = {mine->best_logit, mine->best, mine->largest, mine->sum};
  p = join_lanes(p);
  if (threadIdx.x > 0) return;
  a.out.rows[*a.out.turn * a.out.stride + row] = {
      p.best, p.best < 0 ? 0 : p.best_logit - p.largest - logf(p.sum)};
  if (a.out.ids != nullptr) a.out.ids[row] = max(0, p.best);  // the host ends a row without an id
}

}  // namespace

void sample_greedy(Ctx& cx, const GreedyOut& out, const Tensor& logits, const uint32_t* never) {
  static_assert(kSampleParts == 32);  // a warp joins them
  const int64_t rows = logits.dim(0);
  if (rows == 0) return;
  const SampleScratch scratch(Scratch(cx.scratch), rows);
  const Args args{.out = out,
                  .logits = logits.as<float>(),
                  .never = never,
                  .parts = scratch.parts,
                  .counters = cx.counters,
                  .vocab = logits.dim(1)};
  cuda::launch(cx.stream, greedy_kernel,
               {.grid = dim3(kSampleParts, static_cast<unsigned>(rows)), .block = kThreads}, args);
}

}  // namespace nibble::ops::gpu
