// sample_drawn on a GPU.
//   logits [R, V] f32, in    never [ceil(V / 32)], in, or none    draws [R], in    out: see
//   GreedyOut
// A block a row. What is the same for every draw of a row, sample_greedy has left. The row, 4 V
// bytes, is read from the L2 cache once, 4 times with top_k, 5 with top_p, 8 with both: at V =
// 201,088 about 7 us each.
//
// An id's key is its distance from the largest logit in units of the temperature, times 2^27: ids
// of the smallest keys are the heaviest, and those from 2^32 on weigh less than 2^-44. top_k and
// top_p look for the largest key that is still in by three histograms over 11, 11 and 10 of its
// bits.
#include <cfloat>

#include "cuda/launch.cuh"
#include "ops/sample/draw.h"
#include "ops/sample/sample_parts.h"

namespace nibble::ops::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kBins = 2048;
constexpr float kKeyUnits = 0x1p27f, kEndOfKeys = 32;
constexpr float kWeightUnits = 0x1p44f;
constexpr unsigned kAll = 0xffffffff;

using Sum = unsigned long long;  // of weights in units of 2^-44, or of ids

struct Args {
  GreedyOut out;
  const float* logits;
  const uint32_t* never;
  const Draw* draws;
  const SamplePart* parts;  // of sample_greedy
  int64_t vocab;
};

struct Shared {
  Sum bins[kBins];
  Sum of_warps[kWarps];
  int ties_of_warps[kWarps];
  uint32_t digit;
  Sum before;
};

// The ids that are in: those of keys below `last`, and the first `ties` ids of key `last` itself.
struct Kept {
  uint32_t last = 0xffffffff;
  Sum ties = ~Sum{0};
};

struct Row {
  const float* logits;
  const uint32_t* never;
  int64_t vocab;
  float best;      // of the ids that are not `never`
  float per_unit;  // 1 / temperature, but finite: below 10^-30 only the largest are left
  float floor;     // the least logit that min_p lets in

  // Whether the id can be drawn at all; its key.
  __device__ bool key_of(int64_t i, uint32_t& key) const {
    const float x = logits[i];
    if (never != nullptr && (never[i / 32] >> (i % 32) & 1) != 0) return false;
    const float z = (best - x) * per_unit;
    key = static_cast<uint32_t>(z * kKeyUnits);
    return z < kEndOfKeys && x >= floor;
  }
  // From the key, so that ids of one key weigh the same.
  __device__ static Sum weight(uint32_t key) {
    return static_cast<Sum>(__expf(static_cast<float>(key) * (-1 / kKeyUnits)) * kWeightUnits);
  }
};

__device__ Sum warp_sum(Sum x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(kAll, x, offset);
  return x;
}

__device__ Sum inclusive_scan(Sum x) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const Sum other = __shfl_up_sync(kAll, x, offset);
    if (threadIdx.x % 32 >= offset) x += other;
  }
  return x;
}

// The first bin up to whose end the sums reach `target`, and the sum before it. By warp 0; leaves
// the last bin where they do not.
__device__ void find_bin(Shared& s, Sum target) {
  constexpr int kEach = kBins / 32;
  const int lane = threadIdx.x;
  Sum mine = 0;
  for (int b = 0; b < kEach; ++b) mine += s.bins[lane * kEach + b];
  const Sum upto = inclusive_scan(mine);
  const unsigned reached = __ballot_sync(kAll, upto >= target);
  const int owner = reached == 0 ? 31 : __ffs(reached) - 1;
  if (lane != owner) return;
  Sum before = upto - mine;
  int b = 0;
  for (; b + 1 < kEach && before + s.bins[lane * kEach + b] < target; ++b)
    before += s.bins[lane * kEach + b];
  s.digit = lane * kEach + b;
  s.before = before;
}

// The fewest of the ids that are in, heaviest first, whose sum of size(key) reaches `target`.
template <typename Size>
__device__ Kept select(Shared& s, const Row& row, const Kept& kept, Sum target, const Size& size) {
  uint32_t prefix = 0;  // the digits found so far
  Sum before = 0;       // of the keys below them
#pragma unroll 1
  for (int round = 0; round < 3; ++round) {
    const int shift = round == 0 ? 21 : round == 1 ? 10 : 0;
    const uint32_t mask = round == 0 ? 0 : kAll << (round == 1 ? 21 : 10);
    for (int b = threadIdx.x; b < kBins; b += kThreads) s.bins[b] = 0;
    __syncthreads();
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < row.vocab; i += kThreads) {
      uint32_t key;
      if (!row.key_of(i, key) || key >= kept.last || (key & mask) != prefix) continue;
      atomicAdd(&s.bins[(key & ~mask) >> shift], size(key));
    }
    __syncthreads();
    // Of the last key some ids may be in.
    if (threadIdx.x == 0 && kept.ties != ~Sum{0} && (kept.last & mask) == prefix)
      s.bins[(kept.last & ~mask) >> shift] += kept.ties * size(kept.last);
    __syncthreads();
    if (threadIdx.x < 32) find_bin(s, target - before);
    __syncthreads();
    prefix |= s.digit << shift;
    before += s.before;
    __syncthreads();
  }
  // The fewest of the last key that make up the rest. (A division of 64 bits is a call.)
  const Sum rest = target - before, each = max(size(prefix), Sum{1});
  auto ties = static_cast<Sum>(__fdividef(static_cast<float>(rest), static_cast<float>(each)));
  while (ties * each < rest) ++ties;
  while (ties > 0 && (ties - 1) * each >= rest) --ties;
  return {prefix, prefix == kept.last ? min(ties, kept.ties) : ties};
}

// Of the ids that are in: the one at which the sum of weights over ids in order passes u of it.
__device__ int32_t draw(Shared& s, const Row& row, const Kept& kept, double u) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t each = (row.vocab + kThreads - 1) / kThreads * 32;
  const int64_t begin = warp * each, end = min(begin + each, row.vocab);
  Sum sum = 0;
  int ties = 0;
  for (int64_t i = begin + lane; i < end; i += 32) {
    uint32_t key;
    if (!row.key_of(i, key)) continue;
    if (key < kept.last) sum += Row::weight(key);
    ties += key == kept.last;
  }
  sum = warp_sum(sum);
  ties = __reduce_add_sync(kAll, ties);
  if (lane == 0) s.of_warps[warp] = sum, s.ties_of_warps[warp] = ties;
  __syncthreads();
  if (warp != 0) return -1;

  // Warp 0 finds the part, then the id within it.
  const Sum tie_weight = Row::weight(kept.last);
  const Sum ties_here = lane < kWarps ? s.ties_of_warps[lane] : 0;
  const Sum ties_before = inclusive_scan(ties_here) - ties_here;
  const Sum ties_in = min(ties_here, kept.ties > ties_before ? kept.ties - ties_before : Sum{0});
  const Sum mine = (lane < kWarps ? s.of_warps[lane] : 0) + ties_in * tie_weight;
  const Sum upto = inclusive_scan(mine);
  const Sum all = __shfl_sync(kAll, upto, 31);
  Sum target = static_cast<Sum>(u * static_cast<double>(all));
  target = min(target, all - 1);
  const int part = __ffs(__ballot_sync(kAll, upto > target)) - 1;
  target -= __shfl_sync(kAll, upto - mine, part);
  Sum ties_left = __shfl_sync(kAll, ties_in, part);
  for (int64_t first = part * each;; first += 32) {
    const int64_t i = first + lane;
    uint32_t key = 0;
    const bool can = i < row.vocab && row.key_of(i, key);
    const bool is_tie = can && key == kept.last;
    const unsigned all_ties = __ballot_sync(kAll, is_tie);
    const Sum rank = __popc(all_ties & ((1u << lane) - 1));
    const bool is_in = can && (key < kept.last || (is_tie && rank < ties_left));
    const Sum run = inclusive_scan(is_in ? Row::weight(key) : 0);
    const unsigned past = __ballot_sync(kAll, run > target);
    if (past != 0) return static_cast<int32_t>(first + __ffs(past) - 1);
    target -= __shfl_sync(kAll, run, 31);
    ties_left -= min(ties_left, static_cast<Sum>(__popc(all_ties)));
  }
}

__global__ void __launch_bounds__(kThreads) draw_kernel(const __grid_constant__ Args a) {
  __shared__ Shared s;
  nibble::cuda::griddep_wait();
  nibble::cuda::griddep_launch_dependents();
  const int64_t r = blockIdx.x;
  const Draw& d = a.draws[r];
  if (d.temperature == 0) return;
  const float* logits = a.logits + r * a.vocab;
  const SamplePart all = a.parts[r * kSampleParts];
  int32_t id = all.best;
  if (id >= 0) {
    const Row row{.logits = logits,
                  .never = a.never,
                  .vocab = a.vocab,
                  .best = all.best_logit,
                  .per_unit = fminf(__fdividef(1, d.temperature), 1e30f),
                  .floor = d.min_p > 0 ? all.best_logit + d.temperature * logf(d.min_p) : -FLT_MAX};
    const auto weight = [](uint32_t key) { return Row::weight(key); };
    Kept kept;
    if (d.top_k > 0 && d.top_k < a.vocab)
      kept = select(s, row, kept, d.top_k, [](uint32_t) { return Sum{1}; });
    if (d.top_p < 1) {
      Sum sum = 0;
      for (int64_t i = threadIdx.x; i < a.vocab; i += kThreads) {
        uint32_t key;
        if (row.key_of(i, key) && key < kept.last) sum += Row::weight(key);
      }
      sum = warp_sum(sum);
      __syncthreads();
      if (threadIdx.x % 32 == 0) s.of_warps[threadIdx.x / 32] = sum;
      __syncthreads();
      sum = kept.ties == ~Sum{0} ? 0 : kept.ties * Row::weight(kept.last);
      for (int w = 0; w < kWarps; ++w) sum += s.of_warps[w];
      const auto target = static_cast<Sum>(ceil(static_cast<double>(d.top_p) * sum));
      kept = select(s, row, kept, max(target, Sum{1}), weight);
      __syncthreads();
    }
    id = draw(s, row, kept, d.u);
  }
  if (threadIdx.x != 0) return;
  a.out.rows[*a.out.turn * a.out.stride + r] = {
      id, id < 0 ? 0 : logits[id] - all.largest - logf(all.sum)};
  if (a.out.ids != nullptr) a.out.ids[r] = max(0, id);
}

}  // namespace

void sample_drawn(Ctx& cx, const GreedyOut& out, const Tensor& logits, const uint32_t* never,
                  const Draw* draws) {
  if (logits.dim(0) == 0) return;
  const Args args{.out = out,
                  .logits = logits.as<float>(),
                  .never = never,
                  .draws = draws,
                  .parts = SampleScratch(Scratch(cx.scratch), logits.dim(0)).parts,
                  .vocab = logits.dim(1)};
  cuda::launch(cx.stream, draw_kernel,
               {.grid = static_cast<unsigned>(logits.dim(0)), .block = kThreads}, args);
}

}  // namespace nibble::ops::gpu
