// add_norm_over_ranks: a block sends some rows of d to all other ranks, as one_shot_blocks does
// (ops/all_reduce/one_shot.h), and adds up what arrives, in order of ranks, to x.
// Bytes at two ranks: 4 H a token over the link each way under --exact, else 2 H; 18 H of memory.
#include <algorithm>
#include <type_traits>

#include "cuda/async_copy.cuh"
#include "cuda/launch.cuh"
#include "cuda/mbarrier.cuh"
#include "ops/all_reduce/peer_exchange.cuh"
#include "ops/norm/add_norm_over_ranks.h"
#include "ops/norm/add_norm_row.cuh"

namespace nibble::ops::gpu {
namespace {

// Eight values as they travel: T is float, or bf16.
template <typename T>
struct Eight {
  static constexpr int kWords = sizeof(T) * 8 / sizeof(uint4);
  uint4 words[kWords];
};

template <typename T>
__device__ Eight<T> eight_of(const float* d) {
  const float4* from = reinterpret_cast<const float4*>(d);
  const float4 a = from[0], b = from[1];
  const auto bits = [](float v) { return __float_as_uint(v); };
  if constexpr (std::is_same_v<T, float>)
    return {{{bits(a.x), bits(a.y), bits(a.z), bits(a.w)},
             {bits(b.x), bits(b.y), bits(b.z), bits(b.w)}}};
  else
    return {{{cuda::pack_bf16(a.x, a.y), cuda::pack_bf16(a.z, a.w), cuda::pack_bf16(b.x, b.y),
              cuda::pack_bf16(b.z, b.w)}}};
}

__device__ void add(float (&sum)[8], const Eight<float>& part) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint4 w = part.words[i];
    sum[4 * i] += __uint_as_float(w.x), sum[4 * i + 1] += __uint_as_float(w.y);
    sum[4 * i + 2] += __uint_as_float(w.z), sum[4 * i + 3] += __uint_as_float(w.w);
  }
}
__device__ void add(float (&sum)[8], const Eight<uint16_t>& part) {
  const uint32_t words[4] = {part.words[0].x, part.words[0].y, part.words[0].z, part.words[0].w};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    sum[2 * i] += cuda::bf16_lo(words[i]), sum[2 * i + 1] += cuda::bf16_hi(words[i]);
}

// Thread blocks of kRows rows at a time. x is on its way while d is.
template <int kMine, bool kE4m3, typename T, int kRows>
__global__ void __launch_bounds__(kNormThreads, 2)
    add_norm_rows_over_ranks(const __grid_constant__ AddNorm a, const GateLogits gated,
                             const __grid_constant__ PeerMemory m) {
  extern __shared__ float4 x_ahead[];  // [kRows, kMine, 2, kNormThreads]: each thread's own
  __shared__ bool is_lost;
  if (threadIdx.x == 0) is_lost = false;
  NormRow<kMine, kE4m3> norm(a, gated);
  const auto tokens = static_cast<int>(a.tokens), hidden = static_cast<int>(a.hidden);
  const auto room = [&](int of, int from, uint32_t number, int r, int i) {
    return reinterpret_cast<Eight<T>*>(block_of(m, of, from, number)) +
           (r * hidden + norm.column(i)) / 8;
  };
  const auto eight_at = [&](int row, int i) {
    return eight_of<T>(a.d + int64_t{row} * hidden + norm.column(i));
  };
  const auto ahead = [&](int r, int i, int half) {
    return x_ahead + ((r * kMine + i) * 2 + half) * kNormThreads + threadIdx.x;
  };
  cuda::griddep_wait();
  uint32_t number = m.counts[2 + blockIdx.x];
  bool has_released = false;
  for (int first = blockIdx.x * kRows; first < tokens; first += gridDim.x * kRows) {
    ++number;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        if (first + r >= tokens || !norm.has(i)) continue;
        const float* x = a.x + int64_t{first + r} * hidden + norm.column(i);
        for (int half = 0; half < 2; ++half)
          cuda::async_copy_16(cuda::shared_address(ahead(r, i, half)), x + 4 * half);
      }
    cuda::async_copy_commit();
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        if (first + r >= tokens || !norm.has(i)) continue;
        const Eight<T> mine = eight_at(first + r, i);
        for (int other = 1; other < m.size; ++other)
          *room((m.rank + other) % m.size, m.rank, number, r, i) = mine;
      }
    // What comes next begins beside the wait for the others.
    if (!has_released) cuda::griddep_launch_dependents();
    has_released = true;
    exchange_blocks(m, number, is_lost);
    cuda::async_copy_wait<0>();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = first + r;
      if (row >= tokens) break;
      float y[kMine][8] = {};
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        if (!norm.has(i)) continue;
        float sum[8];
        for (int rank = 0; rank < m.size; ++rank) {
          Eight<T> part;
          if (rank == m.rank)
            part = eight_at(row, i);
          else
#pragma unroll
            for (int w = 0; w < Eight<T>::kWords; ++w)
              part.words[w] = __ldcg(room(m.rank, rank, number, r, i)->words + w);
          if (rank == 0) {
#pragma unroll
            for (float& v : sum) v = -0.0f;  // which leaves the first part as it is
          }
          add(sum, part);
        }
        if (is_lost) sum[0] = __uint_as_float(0x7fc00000);  // NaN, of the whole row by its norm
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float4 v = *ahead(r, i, half);
          const float* more = sum + 4 * half;
          float* to = y[i] + 4 * half;
          to[0] = v.x + more[0], to[1] = v.y + more[1], to[2] = v.z + more[2],
          to[3] = v.w + more[3];
        }
      }
      norm.store(row, y);
    }
  }
  if (threadIdx.x == 0) m.counts[2 + blockIdx.x] = number;
}

}  // namespace

void add_norm_over_ranks(Ctx& cx, const PeerMemory& peers, const AddNorm& a,
                         const GateLogits& gate) {
  CHECK(a.rows == nullptr && a.hidden <= kMostHiddenOverRanks);
  CHECK(peers.size <= PeerMemory::kMostRanks);
  const auto run = [&]<int kMine, bool kE4m3, typename T>() {
    // As many as its room holds and as spill nothing; of few tokens a block has one.
    constexpr int kMost = kMine > 1 ? 1 : std::is_same_v<T, float> ? 2 : 4;
    const bool has_many = a.tokens > 2 * peers.num_blocks;
    const int64_t blocks = (a.tokens + (has_many ? kMost : 1) - 1) / (has_many ? kMost : 1);
    cuda::launch(cx.stream,
                 has_many ? add_norm_rows_over_ranks<kMine, kE4m3, T, kMost>
                          : add_norm_rows_over_ranks<kMine, kE4m3, T, 1>,
                 {.grid = dim3(static_cast<unsigned>(std::min<int64_t>(blocks, peers.num_blocks))),
                  .block = dim3(kNormThreads),
                  .smem_bytes = (has_many ? kMost : 1) * kMine * 2 * kNormThreads * sizeof(float4),
                  .release = cuda::Release::kAfterWait},
                 a, gate, peers);
  };
  const auto run_in = [&]<int kMine, bool kE4m3>() {
    if (cx.kernels.exact)
      run.template operator()<kMine, kE4m3, float>();
    else
      run.template operator()<kMine, kE4m3, uint16_t>();
  };
  const bool is_narrow = a.hidden <= 8 * kNormThreads, e4m3 = a.e4m3.codes != nullptr;
  if (is_narrow && e4m3) return run_in.operator()<1, true>();
  if (is_narrow) return run_in.operator()<1, false>();
  if (e4m3) return run_in.operator()<2, true>();
  run_in.operator()<2, false>();
}

}  // namespace nibble::ops::gpu
