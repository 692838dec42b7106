// What a thread block of sample_drawn does (draw_cuda.cu): a row, of which it has all columns, or,
// of several ranks, its own.
//
// An id's key is its distance from the largest logit in units of the temperature, times 2^27: ids
// of the smallest keys are the heaviest, and those from 2^32 on weigh less than 2^-44. top_k and
// top_p look for the largest key that is still in by three histograms over 11, 11 and 10 of its
// bits. Counts and weights are whole numbers: ranks add up their histograms, and what they draw is
// what one finds that has the whole row.
#pragma once

#include <cfloat>

#include "cuda/launch.cuh"
#include "ops/all_reduce/peer_exchange.cuh"
#include "ops/sample/draw.h"
#include "ops/sample/sample_parts.h"

namespace nibble::ops::gpu::drawing {

inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kBins = 2048;
inline constexpr float kKeyUnits = 0x1p27f, kEndOfKeys = 32;
inline constexpr float kWeightUnits = 0x1p44f;
inline constexpr unsigned kAll = 0xffffffff;

using Sum = unsigned long long;  // of weights in units of 2^-44, or of ids

struct Args {
  GreedyOut out;
  const float* logits;
  const uint32_t* never;
  const Draw* draws;
  const SamplePart* parts;  // of sample_greedy, of several ranks of join_greedy
  int64_t rows, columns;
};

struct Shared {
  Sum bins[kBins];
  Sum of_warps[kWarps];
  int ties_of_warps[kWarps];
  uint32_t digit;
  Sum before, target;
  bool is_lost;
};

// A rank that has the whole row.
struct Alone {
  static constexpr bool kIsSplit = false;
  __device__ void add_up(Shared&) {}
};

// The thread blocks of one index on all ranks.
class Together {
 public:
  static constexpr bool kIsSplit = true;
  __device__ explicit Together(const PeerMemory& m) : m_(m), number_(m.counts[2 + blockIdx.x]) {}
  // The first n bins of each rank are there for all.
  __device__ void exchange(Shared& s, int n) {
    ++number_;
    for (int r = 1; r < m_.size; ++r) {
      const int peer = (m_.rank + r) % m_.size;
      auto* const to = reinterpret_cast<Sum*>(block_of(m_, peer, m_.rank, number_));
      for (int i = threadIdx.x; i < n; i += kThreads) to[i] = s.bins[i];
    }
    exchange_blocks(m_, number_, s.is_lost);
  }
  // Of what was exchanged last.
  __device__ Sum bin_of(const Shared& s, int rank, int i) const {
    if (rank == m_.rank) return s.bins[i];
    return __ldcg(reinterpret_cast<const Sum*>(block_of(m_, m_.rank, rank, number_)) + i);
  }
  // The bins become those of all ranks together.
  __device__ void add_up(Shared& s) {
    static_assert(sizeof(s.bins) <= PeerMemory::kBlockFloats * sizeof(float));
    exchange(s, kBins);
    for (int i = threadIdx.x; i < kBins; i += kThreads) {
      Sum all = 0;
      for (int r = 0; r < m_.size; ++r) all += bin_of(s, r, i);
      s.bins[i] = all;
    }
    __syncthreads();
  }
  __device__ int rank() const { return m_.rank; }
  __device__ int size() const { return m_.size; }
  __device__ void end() const {
    if (threadIdx.x == 0) m_.counts[2 + blockIdx.x] = number_;
  }

 private:
  const PeerMemory& m_;
  uint32_t number_;  // of the blocks that this thread block has sent
};

// The ids that are in: those of keys below `last`, and the first `ties` ids of key `last` itself.
struct Kept {
  uint32_t last = 0xffffffff;
  Sum ties = ~Sum{0};
};

struct Row {
  const float* logits;
  const uint32_t* never;
  int64_t columns;
  int32_t first_id;
  float best;      // of the ids that are not `never`
  float per_unit;  // 1 / temperature, but finite: below 10^-30 only the largest are left
  float floor;     // the least logit that min_p lets in

  // Whether the id can be drawn at all; its key.
  __device__ bool key_of(int64_t i, uint32_t& key) const {
    const float x = logits[i];
    const int64_t id = first_id + i;
    if (never != nullptr && (never[id / 32] >> (id % 32) & 1) != 0) return false;
    const float z = (best - x) * per_unit;
    key = static_cast<uint32_t>(z * kKeyUnits);
    return z < kEndOfKeys && x >= floor;
  }
  // From the key, so that ids of one key weigh the same.
  __device__ static Sum weight(uint32_t key) {
    return static_cast<Sum>(__expf(static_cast<float>(key) * (-1 / kKeyUnits)) * kWeightUnits);
  }
};

// Columns of each warp where they look for one in order.
__device__ inline int64_t columns_of_warp(const Row& row) {
  return (row.columns + kThreads - 1) / kThreads * 32;
}

__device__ inline Sum warp_sum(Sum x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(kAll, x, offset);
  return x;
}

__device__ inline Sum inclusive_scan(Sum x) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const Sum other = __shfl_up_sync(kAll, x, offset);
    if (threadIdx.x % 32 >= offset) x += other;
  }
  return x;
}

// The first bin up to whose end the sums reach target_of(the sum of all), and the sum before it. By
// warp 0; leaves the last bin where they do not.
template <typename Target>
__device__ void find_bin(Shared& s, const Target& target_of) {
  constexpr int kEach = kBins / 32;
  const int lane = threadIdx.x;
  Sum mine = 0;
  for (int b = 0; b < kEach; ++b) mine += s.bins[lane * kEach + b];
  const Sum upto = inclusive_scan(mine);
  const Sum target = target_of(__shfl_sync(kAll, upto, 31));
  const unsigned reached = __ballot_sync(kAll, upto >= target);
  const int owner = reached == 0 ? 31 : __ffs(reached) - 1;
  if (lane != owner) return;
  Sum before = upto - mine;
  int b = 0;
  for (; b + 1 < kEach && before + s.bins[lane * kEach + b] < target; ++b)
    before += s.bins[lane * kEach + b];
  s.digit = lane * kEach + b;
  s.before = before;
  s.target = target;
}

// The fewest of the ids that are in, heaviest first, whose sum of size(key) reaches target_of(the
// sum of all that are in).
template <typename Ranks, typename Size, typename Target>
__device__ Kept select(Shared& s, const Row& row, const Kept& kept, Ranks& ranks, const Size& size,
                       const Target& target_of) {
  uint32_t prefix = 0;         // the digits found so far
  Sum before = 0, target = 0;  // of the keys below them
#pragma unroll 1
  for (int round = 0; round < 3; ++round) {
    const int shift = round == 0 ? 21 : round == 1 ? 10 : 0;
    const uint32_t mask = round == 0 ? 0 : kAll << (round == 1 ? 21 : 10);
    for (int b = threadIdx.x; b < kBins; b += kThreads) s.bins[b] = 0;
    __syncthreads();
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < row.columns; i += kThreads) {
      uint32_t key;
      if (!row.key_of(i, key) || key >= kept.last || (key & mask) != prefix) continue;
      atomicAdd(&s.bins[(key & ~mask) >> shift], size(key));
    }
    __syncthreads();
    ranks.add_up(s);
    // Of the last key some ids may be in.
    if (threadIdx.x == 0 && kept.ties != ~Sum{0} && (kept.last & mask) == prefix)
      s.bins[(kept.last & ~mask) >> shift] += kept.ties * size(kept.last);
    __syncthreads();
    if (threadIdx.x < 32)
      find_bin(s, [&](Sum all) { return round == 0 ? target_of(all) : target - before; });
    __syncthreads();
    if (round == 0) target = s.target;
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

// Where the sum of weights, of `all`, is to be passed.
__device__ inline Sum target_of(double u, Sum all) {
  return min(static_cast<Sum>(u * static_cast<double>(all)), all - 1);
}

// The column where the sum of weights in order passes target_of_all(the sum of all). Of equal keys
// at the end so many are in. By warp 0, behind the sums of warps.
template <typename Target>
__device__ int64_t find_column(const Shared& s, const Row& row, const Kept& kept, Sum ties,
                               const Target& target_of_all) {
  const int lane = threadIdx.x % 32;
  const int64_t each = columns_of_warp(row);
  const Sum tie_weight = Row::weight(kept.last);
  const Sum ties_here = lane < kWarps ? s.ties_of_warps[lane] : 0;
  const Sum ties_before = inclusive_scan(ties_here) - ties_here;
  const Sum ties_in = min(ties_here, ties > ties_before ? ties - ties_before : Sum{0});
  const Sum mine = (lane < kWarps ? s.of_warps[lane] : 0) + ties_in * tie_weight;
  const Sum upto = inclusive_scan(mine);
  Sum target = target_of_all(__shfl_sync(kAll, upto, 31));
  const int part = __ffs(__ballot_sync(kAll, upto > target)) - 1;
  target -= __shfl_sync(kAll, upto - mine, part);
  Sum ties_left = __shfl_sync(kAll, ties_in, part);
  for (int64_t first = part * each;; first += 32) {
    const int64_t i = first + lane;
    uint32_t key = 0;
    const bool can = i < row.columns && row.key_of(i, key);
    const bool is_tie = can && key == kept.last;
    const unsigned all_ties = __ballot_sync(kAll, is_tie);
    const Sum rank = __popc(all_ties & ((1u << lane) - 1));
    const bool is_in = can && (key < kept.last || (is_tie && rank < ties_left));
    const Sum run = inclusive_scan(is_in ? Row::weight(key) : 0);
    const unsigned past = __ballot_sync(kAll, run > target);
    if (past != 0) return first + __ffs(past) - 1;
    target -= __shfl_sync(kAll, run, 31);
    ties_left -= min(ties_left, static_cast<Sum>(__popc(all_ties)));
  }
}

struct Drawn {
  int32_t id;
  float logit;
};

// Of the ids that are in: the one at which the sum of weights over ids in order passes u of it. Of
// one rank known to warp 0 alone.
template <typename Ranks>
__device__ Drawn draw(Shared& s, const Row& row, const Kept& kept, Ranks& ranks, double u) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t each = columns_of_warp(row);
  const int64_t begin = warp * each, end = min(begin + each, row.columns);
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
  const auto drawn_of = [&](int64_t column) -> Drawn {
    return {static_cast<int32_t>(row.first_id + column), row.logits[column]};
  };
  if constexpr (!Ranks::kIsSplit) {
    if (warp != 0) return {};
    return drawn_of(
        find_column(s, row, kept, kept.ties, [&](Sum all) { return target_of(u, all); }));
  } else {
    // Each rank's weights and equal keys at the end; the ids of the first ranks come first.
    if (threadIdx.x < 2) {
      Sum all = 0;
      for (int w = 0; w < kWarps; ++w)
        all += threadIdx.x == 0 ? s.of_warps[w] : static_cast<Sum>(s.ties_of_warps[w]);
      s.bins[threadIdx.x] = all;
    }
    __syncthreads();
    ranks.exchange(s, 2);
    const Sum tie_weight = Row::weight(kept.last);
    Sum all = 0, ties_left = kept.ties;
    for (int r = 0; r < ranks.size(); ++r) {
      const Sum ties_in = min(ranks.bin_of(s, r, 1), ties_left);
      all += ranks.bin_of(s, r, 0) + ties_in * tie_weight;
      ties_left -= ties_in;
    }
    Sum target = target_of(u, all);
    int owner = 0;
    Sum ties_of_owner = 0;
    ties_left = kept.ties;
    for (; owner < ranks.size(); ++owner) {
      ties_of_owner = min(ranks.bin_of(s, owner, 1), ties_left);
      const Sum here = ranks.bin_of(s, owner, 0) + ties_of_owner * tie_weight;
      if (target < here) break;
      target -= here;
      ties_left -= ties_of_owner;
    }
    __syncthreads();
    if (s.is_lost || owner == ranks.size()) return {Greedy::kNotFinite, 0};
    if (owner == ranks.rank() && warp == 0) {
      const Drawn found =
          drawn_of(find_column(s, row, kept, ties_of_owner, [&](Sum) { return target; }));
      if (lane == 0)
        s.bins[0] = Sum{static_cast<uint32_t>(found.id)} << 32 | __float_as_uint(found.logit);
    }
    __syncthreads();
    ranks.exchange(s, 1);
    if (s.is_lost) return {Greedy::kNotFinite, 0};
    const Sum found = ranks.bin_of(s, owner, 0);
    return {static_cast<int32_t>(found >> 32), __uint_as_float(static_cast<uint32_t>(found))};
  }
}

// Row r, whose ids have `all` together.
template <typename Ranks>
__device__ Drawn draw_row(Shared& s, const Args& a, int64_t r, const SamplePart& all,
                          Ranks& ranks) {
  const Draw& d = a.draws[r];
  const Row row{.logits = a.logits + r * a.columns,
                .never = a.never,
                .columns = a.columns,
                .first_id = a.out.first_id,
                .best = all.best_logit,
                .per_unit = fminf(__fdividef(1, d.temperature), 1e30f),
                .floor = d.min_p > 0 ? all.best_logit + d.temperature * logf(d.min_p) : -FLT_MAX};
  Kept kept;
  if (d.top_k > 0 && (Ranks::kIsSplit || d.top_k < a.columns))
    kept = select(
        s, row, kept, ranks, [](uint32_t) { return Sum{1}; },
        [&](Sum) { return static_cast<Sum>(d.top_k); });
  if (d.top_p < 1)
    kept = select(
        s, row, kept, ranks, [](uint32_t key) { return Row::weight(key); },
        [&](Sum sum) {
          return max(static_cast<Sum>(ceil(static_cast<double>(d.top_p) * sum)), Sum{1});
        });
  return draw(s, row, kept, ranks, d.u);
}

template <typename Ranks>
__device__ void draw_rows(const Args& a, Ranks& ranks) {
  __shared__ Shared s;
  if (threadIdx.x == 0) s.is_lost = false;
  for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
    if (a.draws[r].temperature == 0) continue;
    const SamplePart all = a.parts[r * kSampleParts];
    Drawn drawn{all.best, 0};
    __syncthreads();
    if (all.best >= 0) drawn = draw_row(s, a, r, all, ranks);
    if (threadIdx.x != 0) continue;
    a.out.rows[*a.out.turn * a.out.stride + r] = {
        drawn.id, drawn.id < 0 ? 0 : drawn.logit - all.largest - logf(all.sum)};
    if (a.out.ids != nullptr) a.out.ids[r] = max(0, drawn.id);
  }
}

}  // namespace nibble::ops::gpu::drawing
