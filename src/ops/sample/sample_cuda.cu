// sample_greedy on a GPU.
//   logits [R, V] f32, in    never [ceil(V / 32)], in, or none    out: see GreedyOut
// Bytes: 4 V a row, in the L2 cache if the product before left them there: at V = 201,088 0.8 MB,
// 0.2 us of an H200's memory; at R = 1 it is one launch's latency. 32 blocks a row each reduce a
// part; the one that ends last puts the parts together in their order, so the result does not
// depend on which that is.
#include <cfloat>

#include "cuda/launch.cuh"
#include "ops/sample/sample.h"
#include "ops/sample/sample_parts.h"

namespace nibble::ops::gpu {
namespace {

using nibble::cuda::griddep_launch_dependents;
using nibble::cuda::griddep_wait;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct Args {
  GreedyOut out;
  const float* logits;
  const uint32_t* never;
  SamplePart* parts;
  uint32_t* counters;  // [R], zero
  int64_t vocab;
};

__device__ bool is_allowed(const uint32_t* never, int64_t i) {
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
#pragma unroll
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

__global__ void __launch_bounds__(kThreads) greedy_kernel(const __grid_constant__ Args a) {
  __shared__ SamplePart of_warps[kWarps];
  __shared__ bool is_last;
  const int64_t row = blockIdx.y;
  const int64_t each = (a.vocab + kSampleParts - 1) / kSampleParts;
  const int64_t begin = blockIdx.x * each, end = min(begin + each, a.vocab);
  const float* logits = a.logits + row * a.vocab;
  griddep_wait();
  griddep_launch_dependents();

  SamplePart p{-FLT_MAX, Greedy::kNone, -FLT_MAX, 0};
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const float x = logits[i];
    SamplePart one{x, static_cast<int32_t>(i), x, 1};
    if (!is_allowed(a.never, i)) one.best = Greedy::kNone, one.best_logit = -FLT_MAX;
    if (!is_number(x)) one = {0, Greedy::kNotFinite, 0, 0};
    p = join(p, one);
  }
  p = join_lanes(p);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = p;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kWarps; ++w) p = join(p, of_warps[w]);
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
