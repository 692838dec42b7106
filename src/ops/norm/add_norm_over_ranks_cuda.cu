// add_norm_over_ranks: a block sends some rows of d to all other ranks, as one_shot_blocks does
// (ops/all_reduce/one_shot.h), and adds up what arrives, in order of ranks, to x.
// Bytes at two ranks: 2 H a token over the link each way, 18 H of memory.
#include <algorithm>

#include "cuda/async_copy.cuh"
#include "cuda/launch.cuh"
#include "cuda/mbarrier.cuh"
#include "ops/all_reduce/peer_exchange.cuh"
#include "ops/norm/add_norm_over_ranks.h"
#include "ops/norm/add_norm_row.cuh"

namespace nibble::ops::gpu {
namespace {

// Eight values as they travel, in bf16.
__device__ uint4 eight_of(const float* d) {
  const float4* from = reinterpret_cast<const float4*>(d);
  const float4 a = from[0], b = from[1];
  return {cuda::pack_bf16(a.x, a.y), cuda::pack_bf16(a.z, a.w), cuda::pack_bf16(b.x, b.y),
          cuda::pack_bf16(b.z, b.w)};
}

__device__ void add(float (&sum)[8], const uint4& part) {
  const uint32_t words[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    sum[2 * i] += cuda::bf16_lo(words[i]), sum[2 * i + 1] += cuda::bf16_hi(words[i]);
}

// Thread blocks of kRows rows at a time. x is on its way while d is.
template <int kMine, bool kE4m3, int kRows>
__global__ void __launch_bounds__(kNormThreads, 2)
    add_norm_rows_over_ranks(const __grid_constant__ AddNorm a, const GateLogits gated,
                             const __grid_constant__ PeerMemory m) {
  extern __shared__ float4 x_ahead[];  // [kRows, kMine, 2, kNormThreads]: each thread's own
  __shared__ bool is_lost;
  if (threadIdx.x == 0) is_lost = false;
  NormRow<kMine, kE4m3> norm(a, gated);
  const auto tokens = static_cast<int>(a.tokens), hidden = static_cast<int>(a.hidden);
  const auto room = [&](int of, int from, uint32_t number, int r, int i) {
    return reinterpret_cast<uint4*>(block_of(m, of, from, number)) +
           (r * hidden + norm.column(i)) / 8;
  };
  const auto eight_at = [&](int row, int i) {
    return eight_of(a.d + int64_t{row} * hidden + norm.column(i));
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
        const uint4 mine = eight_at(first + r, i);
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
          const uint4 part =
              rank == m.rank ? eight_at(row, i) : __ldcg(room(m.rank, rank, number, r, i));
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
  CHECK(peers.size <= PeerMemory::kMostRanks && !cx.kernels.exact);
  const auto run = [&]<int kMine, bool kE4m3>() {
    constexpr int kMost = kMine > 1 ? 1 : 4;  // as many as spill nothing
    const bool has_many = a.tokens > 2 * peers.num_blocks;
    const int rows = has_many ? kMost : 1;
    const int64_t blocks = (a.tokens + rows - 1) / rows;
    cuda::launch(cx.stream,
                 has_many ? add_norm_rows_over_ranks<kMine, kE4m3, kMost>
                          : add_norm_rows_over_ranks<kMine, kE4m3, 1>,
                 {.grid = dim3(static_cast<unsigned>(std::min<int64_t>(blocks, peers.num_blocks))),
                  .block = dim3(kNormThreads),
                  .smem_bytes = rows * kMine * 2 * kNormThreads * sizeof(float4),
                  .release = cuda::Release::kAfterWait},
                 a, gate, peers);
  };
  const bool is_narrow = a.hidden <= 8 * kNormThreads, e4m3 = a.e4m3.codes != nullptr;
  if (is_narrow && e4m3) return run.operator()<1, true>();
  if (is_narrow) return run.operator()<1, false>();
  if (e4m3) return run.operator()<2, true>();
  run.operator()<2, false>();
}

}  // namespace nibble::ops::gpu
