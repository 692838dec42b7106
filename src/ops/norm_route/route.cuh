// Device code of norm_route's CUDA rows: the choice of K experts from a token's logits, and the
// choices of all tokens seen from the experts (ops/routing.h).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/arrivals.cuh"
#include "cuda/bf16.cuh"
#include "cuda/ordered.cuh"
#include "ops/norm/add_norm.cuh"
#include "ops/routing.h"

namespace nibble::ops::gpu {

inline constexpr int kMaxRouted = 512;             // beside shared ones
inline constexpr int kMaxListed = kMaxRouted + 2;  // with those, and even
inline constexpr int kMaxTopK = 32;
// Up to here, by logits and without shared experts, a warp chooses by choose<4>().
inline constexpr int kFewRouted = 128;
inline bool has_few(const Routing& r) {
  return r.num_experts <= kFewRouted && r.shared == 0 && r.bias == nullptr;
}

using nibble::cuda::of_ordered;
using nibble::cuda::ordered;

__device__ __forceinline__ float sigmoid(float x) { return 1 / (1 + __expf(-x)); }

// What makes scores of logits. With a bias [E] they are sigmoids and it, of experts whose groups of
// `each` are among `groups`, a bit of each.
struct Scoring {
  const float* bias = nullptr;
  uint32_t groups = ~0u;
  int each = 1 << 30;
  __device__ __forceinline__ float operator()(float logit, int e) const {
    if (bias == nullptr) return logit;
    return groups >> e / each & 1 ? sigmoid(logit) + __ldg(bias + e) : -INFINITY;
  }
};

// By one warp: scores of experts lane, lane + 32, ..., in an order of integers; 0 behind the last.
// All logits are on their way together: a branch at each would wait for it.
template <int kPerLane>
__device__ __forceinline__ void load_scores(uint32_t (&value)[kPerLane], const float* logits,
                                            int experts, const Scoring& scoring) {
  const int lane = threadIdx.x % 32;
  float logit[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    logit[i] = lane + 32 * i < experts ? __ldcg(logits + lane + 32 * i) : 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + 32 * i;
    value[i] = e < experts ? ordered(scoring(logit[i], e)) : 0;
  }
}

// By one warp: lane k < K gets the k-th best expert and its score. Ties go to the lower id.
// `logits` [E] in global memory, E <= 32 kPerLane.
struct Choice {
  int32_t id;
  float p;  // score, then share
};
template <int kPerLane>
__device__ __forceinline__ Choice choose(const float* logits, int experts, int top_k,
                                         const Scoring& scoring = {}) {
  constexpr unsigned kAll = 0xffffffff;
  const int lane = threadIdx.x % 32;
  uint32_t value[kPerLane];
  load_scores(value, logits, experts, scoring);
  Choice mine{0, 0};
#pragma unroll 1  // code that runs once is slower the longer it is
  for (int k = 0; k < top_k; ++k) {
    uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) best = max(best, value[i]);
    best = __reduce_max_sync(kAll, best);
    unsigned id = 32 * kPerLane;
#pragma unroll
    for (int i = kPerLane - 1; i >= 0; --i)
      if (value[i] == best) id = lane + 32 * i;
    id = __reduce_min_sync(kAll, id);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (lane + 32 * i == static_cast<int>(id)) value[i] = 0;
    if (lane == k) mine = {static_cast<int32_t>(id), of_ordered(best)};
  }
  return mine;
}
// The choices of a step of one token, by one warp; lane k < K: choice k. Slots go by expert.
struct OneChoice {
  Choice choice;
  int32_t slot;
};
__device__ __forceinline__ OneChoice place_one(const Choice& choice, int top_k) {
  OneChoice one{choice, 0};
#pragma unroll 1
  for (int k = 0; k < top_k; ++k) one.slot += __shfl_sync(0xffffffff, choice.id, k) < choice.id;
  return one;
}

// choose() of any number of experts with few registers, a pass over the logits a choice.
static __device__ __forceinline__ Choice choose_by_passes(const float* logits, int experts,
                                                          int top_k, const Scoring& scoring) {
  constexpr unsigned kAll = 0xffffffff;
  const int lane = threadIdx.x % 32;
  Choice mine{0, 0};
  uint32_t last = ~0u;
  int last_id = -1;
#pragma unroll 1
  for (int k = 0; k < top_k; ++k) {
    uint32_t best = 0;
    int id = experts;
#pragma unroll 1
    for (int e = lane; e < experts; e += 32) {
      const uint32_t value = ordered(scoring(__ldcg(logits + e), e));
      const bool is_left = value < last || (value == last && e > last_id);
      if (is_left && value > best) best = value, id = e;
    }
    last = __reduce_max_sync(kAll, best);
    last_id = static_cast<int>(__reduce_min_sync(kAll, best == last ? id : experts));
    if (lane == k) mine = {last_id, of_ordered(last)};
  }
  return mine;
}

// choose() of up to kMaxRouted experts in a third of the time: no choice is worse than the K-th
// best of the lanes' best. That leaves about as many as are chosen, which are ranked side by side.
template <int kWarps>
__device__ __forceinline__ OneChoice choose_many(const float* logits, int experts, int top_k,
                                                 const Scoring& scoring = {}) {
  constexpr unsigned kAll = 0xffffffff;
  constexpr int kPerLane = kMaxRouted / 32;
  __shared__ uint2 found[kWarps][32];  // value, and expert | slot << 16
  uint2* const mine = found[kWarps == 1 ? 0 : threadIdx.x / 32];
  const int lane = threadIdx.x % 32;
  const unsigned before = (1u << lane) - 1;
  uint32_t value[kPerLane], best = 0, least = 0;
  load_scores(value, logits, experts, scoring);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) best = max(best, value[i]);
#pragma unroll 1
  for (int k = 0; k < top_k; ++k) {
    least = __reduce_max_sync(kAll, best);
    if (best == least) best = 0;
  }
  int count = 0;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const bool is_in = value[i] >= least;
    const unsigned all = __ballot_sync(kAll, is_in);
    const int at = count + __popc(all & before);
    if (is_in && at < 32) mine[at] = {value[i], static_cast<uint32_t>(lane + 32 * i)};
    count += __popc(all);
  }
  if (count > 32) {  // many that are equal
    return place_one(choose_by_passes(logits, experts, top_k, scoring), top_k);
  }
  __syncwarp();
  const uint2 own = lane < count ? mine[lane] : uint2{};
  int rank = 0;
#pragma unroll 4
  for (int other = 0; other < count; ++other) {
    const uint32_t theirs = mine[other].x;
    rank += theirs > own.x || (theirs == own.x && other < lane);
  }
  const bool is_chosen = lane < count && rank < top_k;
  const unsigned chosen = __ballot_sync(kAll, is_chosen);  // they lie by expert
  __syncwarp();
  if (is_chosen) mine[rank] = {own.x, own.y | static_cast<uint32_t>(__popc(chosen & before)) << 16};
  __syncwarp();
  if (lane >= top_k) return {};
  const uint2 at = mine[lane];
  return {{static_cast<int32_t>(at.y & 0xffff), of_ordered(at.x)},
          static_cast<int32_t>(at.y >> 16)};
}

// The choices with their shares of the softmax over the K.
__device__ __forceinline__ Choice weigh(Choice mine, int top_k) {
  constexpr unsigned kAll = 0xffffffff;
  const int lane = threadIdx.x % 32;
  const float largest = __shfl_sync(kAll, mine.p, 0);
  const float weight = lane < top_k ? __expf(mine.p - largest) : 0;
  float sum = weight;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAll, sum, step);
  mine.p = weight / sum;
  return mine;
}
// The choices with their sigmoids, of the sum over the K unless over_all.
__device__ __forceinline__ Choice weigh_sigmoids(Choice mine, const float* logits,
                                                 const Routing& r) {
  const int lane = threadIdx.x % 32;
  const float weight = lane < r.top_k ? sigmoid(__ldcg(logits + mine.id)) : 0;
  float sum = weight;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  mine.p = r.sigmoid.scale * weight / (r.over_all ? 1 : sum + 1e-20f);
  return mine;
}
// Those that are chosen: all but shared experts, which are the last.
__device__ __forceinline__ Routing routed_of(Routing r) {
  r.num_experts -= r.shared, r.top_k -= r.shared;
  return r;
}
// Whether this lane has a shared expert: of choice r.top_k - K it is expert r.num_experts - K.
__device__ __forceinline__ bool has_shared(const Routing& r) {
  const int lane = threadIdx.x % 32;
  return lane < r.top_k && lane >= r.top_k - r.shared;
}
// With the shared experts, if there are any, and the logit of one's gate.
__device__ __forceinline__ Choice with_shared(const Choice& mine, const Routing& r, float logit) {
  if (!has_shared(r)) return mine;
  const int id = r.num_experts - r.top_k + static_cast<int>(threadIdx.x % 32);
  return {id, r.shared_gate != nullptr ? sigmoid(logit) : 1};
}
// Of one token, whose logits, of those that are chosen: without groups, and no softmax over all. By
// any of kWarps warps.
template <int kWarps>
__device__ __forceinline__ Choice choose_of(const float* logits, const Routing& all, float shared) {
  const Routing r = routed_of(all);
  const Scoring scoring{r.bias};
  const Choice mine = r.num_experts <= kFewRouted
                          ? choose<4>(logits, r.num_experts, r.top_k, scoring)
                          : choose_many<kWarps>(logits, r.num_experts, r.top_k, scoring).choice;
  return with_shared(r.bias == nullptr ? weigh(mine, r.top_k) : weigh_sigmoids(mine, logits, r),
                     all, shared);
}

// One token's choices by their scores, of logits that norm_route has left: those of the experts
// that are chosen, then the one of a shared expert's gate.
__device__ __forceinline__ OneChoice add_shared_left(const OneChoice& one, const Routing& all) {
  if (!has_shared(all)) return one;
  const Routing r = routed_of(all);
  const int lane = threadIdx.x % 32;
  const float score = all.shared_gate != nullptr ? __ldcg(all.logits + r.num_experts) : 0;
  return {{r.num_experts + lane - r.top_k, score}, lane};
}
__device__ __forceinline__ OneChoice choose_left(const Routing& all) {
  const Routing r = routed_of(all);
  const Scoring scoring{r.bias};
  return add_shared_left(choose_many<1>(all.logits, r.num_experts, r.top_k, scoring), all);
}
// Their weights in the place of scores.
__device__ __forceinline__ OneChoice weigh_left(const OneChoice& one, const Routing& all) {
  const Routing r = routed_of(all);
  const Choice mine =
      r.bias == nullptr ? weigh(one.choice, r.top_k) : weigh_sigmoids(one.choice, all.logits, r);
  return {with_shared(mine, all, one.choice.p), one.slot};
}
// Fills the arrays of routing for that token, counts and offsets where it is the only one.
__device__ __forceinline__ void store_one(const Routing& r, const OneChoice& one, int token = 0) {
  const int lane = threadIdx.x % 32;
  if (lane < r.top_k) {
    const int at = token * r.top_k + lane;
    r.ids[at] = one.choice.id;
    r.p[at] = one.choice.p;
    r.slot[at] = one.slot;
    r.token[one.slot] = token;
  }
  if (r.num_tokens > 1) return;
  uint32_t chosen = 0;  // of experts 32 lane to 32 lane + 31
#pragma unroll 1
  for (int k = 0; k < r.top_k; ++k) {
    const int id = __shfl_sync(0xffffffff, one.choice.id, k);
    if (id / 32 == lane) chosen |= 1u << id % 32;
  }
  int before = 0;
#pragma unroll 4
  for (int first = 0; first <= r.num_experts; first += 32) {
    const int e = first + lane;
    const uint32_t word = __shfl_sync(0xffffffff, chosen, first / 32);
    if (e <= r.num_experts) r.offsets[e] = before + __popc(word & ((1u << lane) - 1));
    if (e < r.num_experts) r.counts[e] = word >> lane & 1;
    before += __popc(word);
  }
}

// By a block of kWarps warps: the choices seen from the experts, as sort_by_expert() orders them. A
// token has an expert once at most: of up to kTokens at a time each expert has a bit a token, so a
// choice's slot is its expert's first and the bits before its own.
template <int kWarps>
struct BlockSort {
  static constexpr int kThreads = kWarps * 32, kWords = 8, kTokens = 32 * kWords;
  int32_t next[kMaxListed];  // slots taken: first not yet given
  uint32_t chosen[kWords][kMaxListed];
  uint16_t ids[kTokens * kMaxTopK];
  int32_t sums[kWarps];

  // All T * K choices in routing.ids, whoever wrote them: counts, offsets, slot, token.
  __device__ __forceinline__ void run(const Routing& r) {
    const int pieces = (r.num_tokens + kTokens - 1) / kTokens;
    if (pieces > 1) count_all(r);
    for (int piece = 0; piece < pieces; ++piece) {
      list(r, piece * kTokens, min(kTokens, r.num_tokens - piece * kTokens));
      run_listed(r, piece * kTokens, min(kTokens, r.num_tokens - piece * kTokens), pieces == 1);
    }
  }

  // ids of `tokens` tokens from `first` on.
  __device__ __forceinline__ void list(const Routing& r, int first, int tokens) {
    constexpr int kAtOnce = 4;
    const int choices = tokens * r.top_k;
    for (int i = threadIdx.x; i < choices; i += kAtOnce * kThreads) {
      int32_t id[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j)
        id[j] = i + j * kThreads < choices
                    ? __ldcg(r.ids + int64_t{first} * r.top_k + i + j * kThreads)
                    : 0;
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j)
        if (i + j * kThreads < choices) ids[i + j * kThreads] = static_cast<uint16_t>(id[j]);
    }
  }

  // Those of `ids`, which are all choices, or else follow `next`, which moves on.
  __device__ __forceinline__ void run_listed(const Routing& r, int first, int tokens,
                                             bool are_all) {
    const int choices = tokens * r.top_k, words = (tokens + 31) / 32;
    for (int w = 0; w < words; ++w)
      for (int e = threadIdx.x; e < r.num_experts; e += kThreads) chosen[w][e] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < choices; i += kThreads) {
      const int t = i / r.top_k;
      atomicOr(&chosen[t / 32][ids[i]], 1u << t % 32);
    }
    __syncthreads();
    if (are_all) {
      for (int e = threadIdx.x; e < r.num_experts; e += kThreads) next[e] = count(e, words);
      make_offsets(r, /*is_kept=*/true);
    }
    for (int i = threadIdx.x; i < choices; i += kThreads) {
      const int t = i / r.top_k, id = ids[i];
      const uint32_t before = (1u << t % 32) - 1;
      const int slot = next[id] + count(id, t / 32) + __popc(chosen[t / 32][id] & before);
      r.slot[first * r.top_k + i] = slot;
      r.token[slot] = first + t;
    }
    if (are_all) return;
    __syncthreads();
    for (int e = threadIdx.x; e < r.num_experts; e += kThreads) next[e] += count(e, words);
  }

  // next: counts -> offsets, and into routing where they are to be kept. A barrier before and
  // after.
  __device__ __forceinline__ void make_offsets(const Routing& r, bool is_kept) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int each = (r.num_experts + kThreads - 1) / kThreads;
    const int first = threadIdx.x * each, end = min(first + each, r.num_experts);
    __syncthreads();
    int mine = 0;
    for (int e = first; e < end; ++e) mine += next[e];
    int upto = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xffffffff, upto, step);
      if (lane >= step) upto += other;
    }
    if (lane == 31) sums[warp] = upto;
    __syncthreads();
    int sum = upto - mine;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += w < warp ? sums[w] : 0;
    for (int e = first; e < end; ++e) {
      const int n = next[e];
      next[e] = sum;
      if (is_kept) r.counts[e] = n, r.offsets[e] = sum;
      sum += n;
    }
    if (is_kept && end == r.num_experts && first < end) r.offsets[end] = sum;
    __syncthreads();
  }

 private:
  // Tokens of the first words that have the expert.
  __device__ __forceinline__ int count(int expert, int words) const {
    int sum = 0;
#pragma unroll
    for (int w = 0; w < kWords; ++w) sum += w < words ? __popc(chosen[w][expert]) : 0;
    return sum;
  }
  __device__ __forceinline__ void count_all(const Routing& r) {
    for (int e = threadIdx.x; e < r.num_experts; e += kThreads) next[e] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < r.num_tokens * r.top_k; i += kThreads)
      atomicAdd(&next[__ldcg(r.ids + i)], 1);
    make_offsets(r, /*is_kept=*/true);
  }
};

// Whether this block is the last of `blocks` to come here; what they wrote is then there. `shared`:
// a flag of the block. The counter is zero before and after.
__device__ __forceinline__ bool is_last_block(bool& shared, uint32_t* counter, uint32_t blocks) {
  __syncthreads();
  if (threadIdx.x == 0) shared = nibble::cuda::is_last_arrival(counter, blocks);
  __syncthreads();
  return shared;
}

}  // namespace nibble::ops::gpu
